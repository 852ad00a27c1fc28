// One call, awaited on the calling thread, that can be cancelled; a server stream also notices a
// silent server.
#ifndef CLIENT_STREAM_H_
#define CLIENT_STREAM_H_

#include <functional>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "client/client_options.h"
#include "grpcpp/client_context.h"
#include "grpcpp/completion_queue.h"
#include "grpcpp/support/async_stream.h"
#include "proto/rpc_status.h"

namespace regroup {

// Waits for the one event that is outstanding on a queue of its own. Not thread safe.
class CallPump {
 public:
  // Asks whether the server still answers; its argument cancels the question.
  using Probe = std::function<absl::Status(const absl::Notification*)>;
  // Asks the server to end the call by itself; false if that cannot be asked.
  using AskToEnd = std::function<bool()>;

  // `probe` is called when nothing has arrived for `probe_after`; if it fails, the call is given
  // up. Once `cancel` is notified, `ask_to_end` is called; without it, or if it returns false, the
  // call is cancelled.
  CallPump(grpc::ClientContext* context, ClientClock* clock, const absl::Notification* cancel,
           absl::Duration probe_after = absl::InfiniteDuration(), Probe probe = nullptr,
           AskToEnd ask_to_end = nullptr);
  ~CallPump();
  CallPump(const CallPump&) = delete;
  CallPump& operator=(const CallPump&) = delete;

  grpc::CompletionQueue* queue() { return &queue_; }

  // Blocks until the outstanding event has come, and says whether it succeeded.
  bool Next();

  // The probe's error, if the call was given up because of it.
  const absl::Status& given_up() const { return given_up_; }

 private:
  // Whether the caller wants the call to end, and nothing was done about it.
  bool Unwanted() const { return !ending_ && cancel_ != nullptr && cancel_->HasBeenNotified(); }
  void CheckServer();

  grpc::CompletionQueue queue_;
  grpc::ClientContext* const context_;
  ClientClock* const clock_;
  const absl::Notification* const cancel_;
  const absl::Duration probe_after_;
  const Probe probe_;
  const AskToEnd ask_to_end_;
  bool ending_ = false;     // `cancel` was seen
  bool cancelled_ = false;  // the call itself
  absl::Status given_up_;
};

// Reads `reader`, which was prepared on pump->queue(), to its end; returns how it ended. `on_start`
// (optional) is called when the server's initial metadata is there.
template <class Message>
absl::Status ReadStream(CallPump* pump, std::unique_ptr<grpc::ClientAsyncReader<Message>> reader,
                        const std::function<void(Message)>& on_message,
                        const std::function<void()>& on_start = nullptr) {
  void* const tag = reader.get();
  reader->StartCall(tag);
  bool more = pump->Next();
  if (more) {
    reader->ReadInitialMetadata(tag);
    more = pump->Next();
    if (more && on_start != nullptr) on_start();
  }
  while (more) {
    Message message;
    reader->Read(&message, tag);
    more = pump->Next();
    if (more) on_message(std::move(message));
  }
  grpc::Status status;
  reader->Finish(&status, tag);
  pump->Next();
  return pump->given_up().ok() ? FromGrpc(status) : pump->given_up();
}

}  // namespace regroup

#endif  // CLIENT_STREAM_H_
