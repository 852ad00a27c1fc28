// The C++ client of a Regroup cluster: the only header to include. It needs //client:client, and
// docs/client.md is its guide.
//
//   auto client = regroup::Client::Connect("127.0.0.1:7070");
//   if (!client.ok()) return client.status();
//   regroup::v1::CreateEngineRequest request;
//   request.mutable_spec()->set_name("actor");  // ... model, layout, optimizer
//   auto created = (*client)->Finish((*client)->CreateEngine(request));
//   if (!created.ok()) return created.status();
//
// What a call means and what it can fail with is written once, at its RPC in
// regroup/v1/control.proto. A server's error arrives with its code, its message and its
// regroup.v1.ErrorDetail (DetailOf). An error without a detail comes from the way to the server:
// UNAVAILABLE (it cannot be reached), DEADLINE_EXCEEDED (it did not answer, or the caller's timeout
// passed), CANCELLED (by the caller).
#ifndef CLIENT_CLIENT_H_
#define CLIENT_CLIENT_H_

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "client/client_options.h"
#include "proto/error_detail.h"
#include "regroup/v1/control.pb.h"

namespace regroup {

// Thread safe. Connects on the first call and again when the connection breaks. Messages of up to
// 64 MB. Callbacks run on the calling thread, between two messages: one that takes long makes this
// client a slow reader, which misses records (see TrainRecord.dropped).
//
// What is sent again when the server cannot be reached, and what is not:
//   reads       again, up to max_attempts times: they change nothing
//   mutations   again, with the same request id: the server runs one once, and answers with the
//               operation of the first
//   Wait        asks and watches again until lost_timeout
//   Train, Generate   never: whether a step was taken could not be told
// An error that the server itself gave is never asked for twice.
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
  absl::StatusOr<v1::GetStatusResponse> GetStatus(const CallOptions& call = {});
  absl::StatusOr<v1::Engine> DescribeEngine(absl::string_view name, const CallOptions& call = {});
  absl::StatusOr<v1::EngineTrace> TraceEngine(const v1::TraceEngineRequest& request,
                                              const CallOptions& call = {});
  absl::StatusOr<v1::ListOperationsResponse> ListOperations(const CallOptions& call = {});
  absl::StatusOr<v1::Operation> GetOperation(absl::string_view id, const CallOptions& call = {});

  // Mutations. An empty request_id is filled in with a new one. Those that return an operation do
  // so once it is accepted: see Wait and Finish. A mutation that ended without an answer may have
  // been accepted: call it again with the request id that it had.
  absl::StatusOr<v1::Operation> CreateEngine(v1::CreateEngineRequest request,
                                             const CallOptions& call = {});
  absl::StatusOr<v1::Operation> DeleteEngine(v1::DeleteEngineRequest request,
                                             const CallOptions& call = {});
  absl::StatusOr<v1::Operation> RelayoutEngine(v1::RelayoutEngineRequest request,
                                               const CallOptions& call = {});
  absl::StatusOr<v1::Operation> SyncEngine(v1::SyncEngineRequest request,
                                           const CallOptions& call = {});
  absl::StatusOr<v1::Operation> ExportEngine(v1::ExportEngineRequest request,
                                             const CallOptions& call = {});
  absl::StatusOr<v1::Operation> SaveCheckpoint(v1::CheckpointRequest request,
                                               const CallOptions& call = {});
  absl::StatusOr<v1::Operation> LoadCheckpoint(v1::CheckpointRequest request,
                                               const CallOptions& call = {});
  absl::StatusOr<v1::Operation> CancelOperation(v1::CancelOperationRequest request,
                                                const CallOptions& call = {});
  absl::StatusOr<v1::Operation> SetEngine(v1::SetEngineRequest request,
                                          const CallOptions& call = {});

  // See a state of an operation that is followed; the last one is done.
  using OnProgress = std::function<void(const v1::Operation&)>;

  // Follows `operation`, of which only the id is read, until it has ended, and returns it then,
  // also when it failed: see OutcomeOf. `on_progress` (optional) sees every state that arrives.
  // When the stream breaks, the operation is asked for instead, and watched again. Cancelling and
  // the timeout end the waiting, not the operation. Errors: NOT_FOUND, UNAVAILABLE (no answer for
  // lost_timeout), DEADLINE_EXCEEDED, CANCELLED.
  absl::StatusOr<v1::Operation> Wait(const v1::Operation& operation,
                                     const OnProgress& on_progress = nullptr,
                                     const CallOptions& call = {});

  // Waits for what a mutation has just returned, and turns a failed operation into its error:
  // returns the operation if it was accepted, followed and done without one. Errors: those of the
  // mutation, of Wait, and OutcomeOf.
  absl::StatusOr<v1::Operation> Finish(absl::StatusOr<v1::Operation> accepted,
                                       const OnProgress& on_progress = nullptr,
                                       const CallOptions& call = {});

  // Trains; returns when the last step is done. `on_record` sees each step. `operation` (optional)
  // receives the id of the operation that the call was, "" if the server had not said it.
  //
  // After `cancel` the engine ends the step that it is in, and `on_record` sees that one too; then
  // the call returns CANCELLED. After the timeout, or when the connection breaks, the engine also
  // ends its step, but nobody sees it: Wait for `operation`, then DescribeEngine.
  absl::Status Train(v1::TrainRequest request,
                     const std::function<void(const v1::TrainRecord&)>& on_record = nullptr,
                     const CallOptions& call = {}, std::string* operation = nullptr);

  // Generates; returns the response that carries the outputs, in the order of the prompts; those of
  // a generation that the server cancelled, too. `on_progress` (optional) sees those before it.
  absl::StatusOr<v1::GenerateResponse> Generate(
      v1::GenerateRequest request,
      const std::function<void(const v1::GenerateResponse&)>& on_progress = nullptr,
      const CallOptions& call = {});

 private:
  struct Impl;
  explicit Client(std::unique_ptr<Impl> impl);

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
