// What the tests of Control share.
#ifndef DAEMON_CONTROL_CONTROL_TEST_UTIL_H_
#define DAEMON_CONTROL_CONTROL_TEST_UTIL_H_

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "daemon/control/control.h"
#include "daemon/control/fake_cluster.h"
#include "gtest/gtest.h"
#include "proto/rpc_status.h"

namespace regroup {

// A worker's error that leaves the engine as it was, and one that does not.
inline absl::Status Fails(absl::StatusCode code, const std::string& message) {
  return MakeError(code, message, v1::ERROR_REASON_DATA);
}

inline absl::Status Breaks(absl::StatusCode code, const std::string& message) {
  v1::ErrorDetail detail;
  detail.set_engine_broken(true);
  return MakeError(code, message, detail);
}

inline v1::DeleteEngineRequest DeleteRequest(const std::string& name) {
  v1::DeleteEngineRequest request;
  request.set_request_id(FakeCluster::NewRequestId());
  request.set_name(name);
  return request;
}

inline v1::RelayoutEngineRequest RelayoutRequest(const std::string& name,
                                                 const std::vector<int>& ranks) {
  v1::RelayoutEngineRequest request;
  request.set_request_id(FakeCluster::NewRequestId());
  request.set_name(name);
  for (int rank : ranks) request.mutable_layout()->add_ranks(rank);
  return request;
}

inline v1::SyncEngineRequest SyncRequest(const std::string& source,
                                         const std::string& destination) {
  v1::SyncEngineRequest request;
  request.set_request_id(FakeCluster::NewRequestId());
  request.set_source(source);
  request.set_destination(destination);
  return request;
}

// A train call on a thread of its own.
class Training {
 public:
  Training(FakeCluster& cluster, const v1::TrainRequest& request)
      : cancellation_(std::make_shared<Cancellation>()) {
    thread_ = std::thread([this, &cluster, request] {
      status_ = cluster.control().Train(
          request, cancellation_, [this](const std::string& id) { id_ = id; },
          [this](const v1::TrainRecord& r) {
            EXPECT_EQ(r.operation(), id_);
            absl::MutexLock lock(&mutex_);
            steps_.push_back(r.step());
            return true;
          });
    });
  }
  ~Training() {
    if (thread_.joinable()) thread_.join();
  }

  void ClientGoesAway() {
    cancellation_->Cancel(CancelledError("the client went away"), CancelledBy::kClient);
  }
  absl::Status Join() {
    thread_.join();
    return status_;
  }
  std::vector<int64_t> steps() {
    absl::MutexLock lock(&mutex_);
    return steps_;
  }
  bool AwaitSteps(size_t count) {
    absl::MutexLock lock(&mutex_);
    const auto enough = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return steps_.size() >= count;
    };
    return mutex_.AwaitWithTimeout(absl::Condition(&enough), kPatience);
  }

 private:
  const std::shared_ptr<Cancellation> cancellation_;
  absl::Mutex mutex_;
  std::vector<int64_t> steps_ ABSL_GUARDED_BY(mutex_);
  std::string id_;
  absl::Status status_;
  std::thread thread_;
};

}  // namespace regroup

#endif  // DAEMON_CONTROL_CONTROL_TEST_UTIL_H_
