// The C++ client of a Regroup cluster: the only header to include. It needs //client:client.
//
//   absl::StatusOr<std::unique_ptr<regroup::Client>> client =
//   regroup::Client::Connect("127.0.0.1:7070"); regroup::v1::CreateEngineRequest request;
//   request.mutable_spec()->set_name("actor");                       // ... model, layout,
//   optimizer absl::StatusOr<regroup::v1::Operation> operation = (*client)->CreateEngine(request);
//   operation = (*client)->Wait(*operation);                         // until it has ended
//   absl::Status outcome = regroup::OutcomeOf(*operation);
//
// What a call means and what it can fail with is written once, at its RPC in
// regroup/v1/control.proto. A server's error arrives with its code, its message and its
// regroup.v1.ErrorDetail (DetailOf in proto/rpc_status.h). An error without a detail comes from the
// way to the server: UNAVAILABLE (it cannot be reached) or DEADLINE_EXCEEDED (it did not answer).
#ifndef CLIENT_CLIENT_H_
#define CLIENT_CLIENT_H_

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "regroup/v1/control.pb.h"

namespace regroup {

struct ClientOptions {
  // Deadline of one unary call, its retries included.
  absl::Duration call_timeout = absl::Seconds(20);
  // How often a call is sent at most when the server cannot be reached. Every unary call may be
  // sent twice: reads change nothing, and a mutation keeps its request id.
  int max_attempts = 3;
  // A stream that is silent for this long has the server asked whether it still answers; if not, it
  // ends.
  absl::Duration probe_after = absl::Seconds(15);
  // How long Wait goes on asking a server that has gone away.
  absl::Duration lost_timeout = absl::Seconds(10);
};

// Thread safe. Connects on the first call and again when the connection breaks. Messages of up to
// 64 MB.
//
// `cancel`, where a call takes one, ends it from any thread: the call then returns CANCELLED within
// about 50 ms. It may be null, and must outlive the call. Callbacks run on the calling thread.
class Client {
 public:
  // `target` is HOST:PORT, [IPV6]:PORT included; nothing is sent yet. Errors: INVALID_ARGUMENT.
  static absl::StatusOr<std::unique_ptr<Client>> Connect(const std::string& target,
                                                         const ClientOptions& options = {});
  ~Client();
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  const std::string& target() const;

  // Reads.
  absl::StatusOr<v1::GetStatusResponse> GetStatus();
  absl::StatusOr<v1::Engine> DescribeEngine(absl::string_view name);
  absl::StatusOr<v1::EngineTrace> TraceEngine(const v1::TraceEngineRequest& request);
  absl::StatusOr<v1::ListOperationsResponse> ListOperations();
  absl::StatusOr<v1::Operation> GetOperation(absl::string_view id);

  // Mutations. An empty request_id is filled in with a new one. Those that return an operation do
  // so once it is accepted: see Wait.
  absl::StatusOr<v1::Operation> CreateEngine(v1::CreateEngineRequest request);
  absl::StatusOr<v1::Operation> DeleteEngine(v1::DeleteEngineRequest request);
  absl::StatusOr<v1::Operation> RelayoutEngine(v1::RelayoutEngineRequest request);
  absl::StatusOr<v1::Operation> SyncEngine(v1::SyncEngineRequest request);
  absl::StatusOr<v1::Operation> ExportEngine(v1::ExportEngineRequest request);
  absl::StatusOr<v1::Operation> SaveCheckpoint(v1::CheckpointRequest request);
  absl::StatusOr<v1::Operation> LoadCheckpoint(v1::CheckpointRequest request);
  absl::StatusOr<v1::Operation> CancelOperation(v1::CancelOperationRequest request);
  absl::StatusOr<v1::Operation> SetEngine(v1::SetEngineRequest request);

  // Follows `operation` until it has ended, and returns it then, also when it failed: see
  // OutcomeOf. `on_progress` (optional) sees every state that arrives, the last one too. When the
  // stream breaks, the operation is asked for instead, and watched again. `cancel` ends the
  // waiting, not the operation. Errors: NOT_FOUND, UNAVAILABLE (no answer for lost_timeout),
  // DEADLINE_EXCEEDED, CANCELLED.
  absl::StatusOr<v1::Operation> Wait(
      const v1::Operation& operation,
      const std::function<void(const v1::Operation&)>& on_progress = nullptr,
      const absl::Notification* cancel = nullptr);

  // Trains; returns when the last step is done. `on_record` sees each step. After `cancel` the
  // engine still ends the step that it is in: Wait for `operation` then, which (optional) receives
  // the id of the operation that the call was, "" if the server had not said it. Never sent twice.
  absl::Status Train(v1::TrainRequest request,
                     const std::function<void(const v1::TrainRecord&)>& on_record = nullptr,
                     const absl::Notification* cancel = nullptr, std::string* operation = nullptr);

  // Generates; returns the response that carries the outputs, in the order of the prompts; those of
  // a generation that the server cancelled, too. `on_progress` (optional) sees those before it.
  // Never sent twice.
  absl::StatusOr<v1::GenerateResponse> Generate(
      v1::GenerateRequest request,
      const std::function<void(const v1::GenerateResponse&)>& on_progress = nullptr,
      const absl::Notification* cancel = nullptr);

 private:
  struct Impl;
  explicit Client(std::unique_ptr<Impl> impl);

  absl::Status WatchOnce(const std::string& id, v1::Operation* latest,
                         const std::function<void(const v1::Operation&)>& on_progress,
                         const absl::Notification* cancel);

  std::unique_ptr<Impl> impl_;
};

// How an operation ended: OK, or the error that it carries, with its detail. OK while it is
// running.
absl::Status OutcomeOf(const v1::Operation& operation);

// A new request id: 128 random bits as 32 hexadecimal digits. Thread safe.
std::string NewRequestId();

// Splits HOST:PORT. Errors: INVALID_ARGUMENT, naming what is allowed.
absl::Status CheckTarget(absl::string_view target);

}  // namespace regroup

#endif  // CLIENT_CLIENT_H_
