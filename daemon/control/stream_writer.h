// The sending half of a server stream whose messages come from a thread that may block.
#ifndef DAEMON_CONTROL_STREAM_WRITER_H_
#define DAEMON_CONTROL_STREAM_WRITER_H_

#include <deque>
#include <memory>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "daemon/control/cancellation.h"
#include "grpcpp/support/server_callback.h"
#include "proto/rpc_status.h"

namespace regroup {

// Push and Close are called from one thread, Close once and last. Deletes itself when the call is
// over.
template <typename T>
class StreamWriter final : public grpc::ServerWriteReactor<T> {
 public:
  static constexpr size_t kMostQueued = 1024;

  // `cancellation` is cancelled when the client goes away.
  explicit StreamWriter(std::shared_ptr<Cancellation> cancellation)
      : cancellation_(std::move(cancellation)) {}

  // Sends `key: value` at once, ahead of all messages. Before the first Push, at most once.
  void SendMetadata(grpc::CallbackServerContext* context, const std::string& key,
                    const std::string& value) {
    absl::MutexLock lock(&mutex_);
    context->AddInitialMetadata(key, value);
    this->StartSendInitialMetadata();
  }

  // Queues a message; waits while kMostQueued are queued, so that a slow reader costs no memory.
  // False once the client is gone, or the cancellation came while it waited.
  bool Push(T message) {
    absl::MutexLock lock(&mutex_);
    const auto room = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return gone_ || queue_.size() < kMostQueued;
    };
    while (!mutex_.AwaitWithTimeout(absl::Condition(&room), absl::Milliseconds(100))) {
      if (cancellation_->cancelled()) return false;
    }
    if (gone_) return false;
    queue_.push_back(std::move(message));
    WriteNext();
    return true;
  }

  // Ends the stream once what is queued is sent. This may be gone when it returns.
  void Close(const absl::Status& status) {
    const grpc::Status outcome = ToGrpc(status);
    {
      absl::MutexLock lock(&mutex_);
      closed_ = true;
      outcome_ = outcome;
      if (!IsDone()) return;
    }
    this->Finish(outcome);
  }

  void OnWriteDone(bool ok) override {
    grpc::Status outcome;
    {
      absl::MutexLock lock(&mutex_);
      writing_ = false;
      queue_.pop_front();
      if (!ok) Gone();
      WriteNext();
      if (!IsDone()) return;
      outcome = outcome_;
    }
    this->Finish(outcome);
  }

  void OnCancel() override {
    cancellation_->Cancel(CancelledError("the client went away"), CancelledBy::kClient);
    absl::MutexLock lock(&mutex_);
    Gone();
  }

  void OnDone() override { delete this; }

 private:
  void Gone() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    gone_ = true;
    // The one that is being written stays until gRPC lets go of it.
    while (queue_.size() > (writing_ ? 1 : 0)) queue_.pop_back();
  }

  void WriteNext() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (writing_ || queue_.empty()) return;
    writing_ = true;
    this->StartWrite(&queue_.front());
  }

  // True for one caller, once: it calls Finish, without the lock. From then on another thread may
  // delete this, so everyone else lets go of it with the lock.
  bool IsDone() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return closed_ && !writing_ && queue_.empty();
  }

  const std::shared_ptr<Cancellation> cancellation_;
  absl::Mutex mutex_;
  std::deque<T> queue_ ABSL_GUARDED_BY(mutex_);
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;  // queue_.front()
  bool gone_ ABSL_GUARDED_BY(mutex_) = false;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  grpc::Status outcome_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace regroup

#endif  // DAEMON_CONTROL_STREAM_WRITER_H_
