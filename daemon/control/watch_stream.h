// The stream of WatchOperation: each change of one operation, or the latest of several, until it is
// done.
#ifndef DAEMON_CONTROL_WATCH_STREAM_H_
#define DAEMON_CONTROL_WATCH_STREAM_H_

#include <cstdint>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "daemon/control/operation_table.h"
#include "grpcpp/support/server_callback.h"

namespace regroup {

// Holds no thread while nothing changes. Deletes itself when the call is over.
class WatchStream final : public grpc::ServerWriteReactor<v1::Operation> {
 public:
  // `operations` outlives the call.
  WatchStream(OperationTable* operations, std::string id);

  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override { delete this; }

 private:
  // Sends the next version, now or when there is one; ends the stream if there cannot be one.
  void Next();
  void Changed(const v1::Operation& operation);
  void Send(v1::Operation operation) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void End(const absl::Status& status);

  OperationTable* const operations_;
  const std::string id_;
  absl::Mutex mutex_;
  v1::Operation sent_ ABSL_GUARDED_BY(mutex_);  // or being sent
  int64_t watch_ ABSL_GUARDED_BY(mutex_) = 0;   // 0 = not waiting for a change
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace regroup

#endif  // DAEMON_CONTROL_WATCH_STREAM_H_
