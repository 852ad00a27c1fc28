// The sending half of a server stream whose messages come from a thread that may block.
#ifndef DAEMON_CONTROL_STREAM_WRITER_H_
#define DAEMON_CONTROL_STREAM_WRITER_H_

#include <cstdint>
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
#include "regroup/v1/control.pb.h"

namespace regroup {

// Says in a message how many before it the reader has missed.
inline void SetDropped(int64_t dropped, v1::TrainRecord* record) { record->set_dropped(dropped); }
// Each tells how far the generation is, so that none before it is missed.
inline void SetDropped(int64_t, v1::GenerateResponse*) {}

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

  // Queues a message. If kMostQueued wait already, because the reader is slow, the oldest of them
  // is dropped, and the one that is sent next says so. False once the client is gone.
  bool Push(T message) {
    absl::MutexLock lock(&mutex_);
    if (gone_) return false;
    queue_.push_back(std::move(message));
    if (queue_.size() > kMostQueued) {
      queue_.pop_front();
      ++dropped_;
    }
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
    queue_.clear();
  }

  void WriteNext() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (writing_ || queue_.empty()) return;
    writing_ = true;
    sent_ = std::move(queue_.front());
    queue_.pop_front();
    SetDropped(std::exchange(dropped_, 0), &sent_);
    this->StartWrite(&sent_);
  }

  // True for one caller, once: it calls Finish, without the lock. From then on another thread may
  // delete this, so everyone else lets go of it with the lock.
  bool IsDone() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return closed_ && !writing_ && queue_.empty();
  }

  const std::shared_ptr<Cancellation> cancellation_;
  absl::Mutex mutex_;
  std::deque<T> queue_ ABSL_GUARDED_BY(mutex_);
  T sent_ ABSL_GUARDED_BY(mutex_);                // or being sent
  int64_t dropped_ ABSL_GUARDED_BY(mutex_) = 0;   // ahead of the queue, since sent_
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;  // sent_
  bool gone_ ABSL_GUARDED_BY(mutex_) = false;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  grpc::Status outcome_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace regroup

#endif  // DAEMON_CONTROL_STREAM_WRITER_H_
