#include "client/client.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/connection.h"
#include "client/stream.h"
#include "regroup/v1/control.grpc.pb.h"

namespace regroup {
namespace {

using Stub = v1::Control::Stub;

// A watch is opened anew this often, so that a server that hangs is noticed.
constexpr absl::Duration kWatchTimeout = absl::Seconds(60);
// How long a server may take to say that it ends an operation; then the call itself is cancelled.
constexpr absl::Duration kAskTimeout = absl::Seconds(2);
// Of a Train stream: the id of the operation that it is.
constexpr char kOperationKey[] = "regroup-operation";

absl::Status NotFollowed(const absl::Status& status, const std::string& id) {
  const std::string message = absl::StrCat("operation ", id, ": ", status.message());
  const std::optional<v1::ErrorDetail> detail = DetailOf(status);
  return detail.has_value() ? MakeError(status.code(), message, *detail)
                            : absl::Status(status.code(), message);
}

std::string OperationIn(const grpc::ClientContext& context) {
  const auto& metadata = context.GetServerInitialMetadata();
  const auto entry = metadata.find(kOperationKey);
  return entry == metadata.end() ? "" : std::string(entry->second.data(), entry->second.size());
}

template <class Request>
void FillRequestId(Request* request) {
  if (request->request_id().empty()) request->set_request_id(NewRequestId());
}

}  // namespace

struct Client::Impl {
  Impl(std::string at, const ClientOptions& options)
      : target(std::move(at)), connection(target, options) {}

  template <class Request, class Response>
  absl::StatusOr<Response> Mutate(Connection::Method<Request, Response> method, Request request,
                                  const CallOptions& call) {
    FillRequestId(&request);
    return connection.Call(method, request, call);
  }

  CallPump::Probe Prober() {
    return [this](const absl::Notification* cancel) { return connection.Probe(cancel); };
  }

  absl::Duration probe_after() const { return connection.options().probe_after; }

  // One watch, for `left` at most.
  absl::Status WatchOnce(const std::string& id, absl::Duration left, const OnProgress& on_state,
                         const absl::Notification* cancel) {
    v1::GetOperationRequest request;
    request.set_id(id);
    grpc::ClientContext context;
    context.set_deadline(GrpcDeadline(std::min(kWatchTimeout, left)));
    CallPump pump(&context, &connection.clock(), cancel, probe_after(), Prober());
    return ReadStream<v1::Operation>(
        &pump, connection.stub().PrepareAsyncWatchOperation(&context, request, pump.queue()),
        on_state);
  }

  // Whether the operation was asked to end, or has ended.
  bool AskToEnd(const std::string& id) {
    if (id.empty()) return false;
    v1::CancelOperationRequest request;
    request.set_id(id);
    const absl::Status status =
        Mutate(&Stub::AsyncCancelOperation, request, {nullptr, kAskTimeout}).status();
    return status.ok() || absl::IsFailedPrecondition(status);
  }

  const std::string target;
  Connection connection;
};

Client::Client(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Client::~Client() = default;

absl::StatusOr<std::unique_ptr<Client>> Client::Connect(const std::string& target,
                                                        const ClientOptions& options) {
  if (absl::Status status = CheckTarget(target); !status.ok()) return status;
  return std::unique_ptr<Client>(new Client(std::make_unique<Impl>(target, options)));
}

const std::string& Client::target() const { return impl_->target; }

absl::StatusOr<v1::GetStatusResponse> Client::GetStatus(const CallOptions& call) {
  return impl_->connection.Call(&Stub::AsyncGetStatus, v1::GetStatusRequest(), call);
}

absl::StatusOr<v1::Engine> Client::DescribeEngine(absl::string_view name, const CallOptions& call) {
  v1::DescribeEngineRequest request;
  request.set_name(std::string(name));
  return impl_->connection.Call(&Stub::AsyncDescribeEngine, request, call);
}

absl::StatusOr<v1::EngineTrace> Client::TraceEngine(const v1::TraceEngineRequest& request,
                                                    const CallOptions& call) {
  return impl_->connection.Call(&Stub::AsyncTraceEngine, request, call);
}

absl::StatusOr<v1::ListOperationsResponse> Client::ListOperations(const CallOptions& call) {
  return impl_->connection.Call(&Stub::AsyncListOperations, v1::ListOperationsRequest(), call);
}

absl::StatusOr<v1::Operation> Client::GetOperation(absl::string_view id, const CallOptions& call) {
  v1::GetOperationRequest request;
  request.set_id(std::string(id));
  return impl_->connection.Call(&Stub::AsyncGetOperation, request, call);
}

absl::StatusOr<v1::Operation> Client::CreateEngine(v1::CreateEngineRequest request,
                                                   const CallOptions& call) {
  return impl_->Mutate(&Stub::AsyncCreateEngine, std::move(request), call);
}

absl::StatusOr<v1::Operation> Client::DeleteEngine(v1::DeleteEngineRequest request,
                                                   const CallOptions& call) {
  return impl_->Mutate(&Stub::AsyncDeleteEngine, std::move(request), call);
}

absl::StatusOr<v1::Operation> Client::RelayoutEngine(v1::RelayoutEngineRequest request,
                                                     const CallOptions& call) {
  return impl_->Mutate(&Stub::AsyncRelayoutEngine, std::move(request), call);
}

absl::StatusOr<v1::Operation> Client::SyncEngine(v1::SyncEngineRequest request,
                                                 const CallOptions& call) {
  return impl_->Mutate(&Stub::AsyncSyncEngine, std::move(request), call);
}

absl::StatusOr<v1::Operation> Client::ExportEngine(v1::ExportEngineRequest request,
                                                   const CallOptions& call) {
  return impl_->Mutate(&Stub::AsyncExportEngine, std::move(request), call);
}

absl::StatusOr<v1::Operation> Client::SaveCheckpoint(v1::CheckpointRequest request,
                                                     const CallOptions& call) {
  return impl_->Mutate(&Stub::AsyncSaveCheckpoint, std::move(request), call);
}

absl::StatusOr<v1::Operation> Client::LoadCheckpoint(v1::CheckpointRequest request,
                                                     const CallOptions& call) {
  return impl_->Mutate(&Stub::AsyncLoadCheckpoint, std::move(request), call);
}

absl::StatusOr<v1::Operation> Client::CancelOperation(v1::CancelOperationRequest request,
                                                      const CallOptions& call) {
  return impl_->Mutate(&Stub::AsyncCancelOperation, std::move(request), call);
}

absl::StatusOr<v1::Operation> Client::SetEngine(v1::SetEngineRequest request,
                                                const CallOptions& call) {
  return impl_->Mutate(&Stub::AsyncSetEngine, std::move(request), call);
}

absl::StatusOr<v1::Operation> Client::Wait(const v1::Operation& operation,
                                           const OnProgress& on_progress, const CallOptions& call) {
  const std::string& id = operation.id();
  v1::Operation latest = operation;
  if (latest.done()) {
    if (on_progress != nullptr) on_progress(latest);
    return latest;
  }
  Connection& connection = impl_->connection;
  ClientClock& clock = connection.clock();
  const absl::Time deadline = clock.Now() + call.timeout.value_or(absl::InfiniteDuration());
  const auto left = [&] { return deadline - clock.Now(); };
  const auto cancelled = [&] { return call.cancel != nullptr && call.cancel->HasBeenNotified(); };
  const absl::Status stopped =
      absl::CancelledError(absl::StrCat("operation ", id, ": stopped waiting"));
  const auto late = [&] {
    return absl::DeadlineExceededError(absl::StrCat("operation ", id, ": has not ended after ",
                                                    absl::FormatDuration(*call.timeout)));
  };
  absl::Time unreachable_since = absl::InfiniteFuture();
  Backoff backoff(connection.options());
  const auto heard = [&](const v1::Operation& now) {
    latest = now;
    unreachable_since = absl::InfiniteFuture();
    if (on_progress != nullptr) on_progress(latest);
  };
  while (true) {
    const absl::Status watched = impl_->WatchOnce(id, left(), heard, call.cancel);
    if (latest.done()) return latest;
    if (cancelled()) return stopped;
    if (left() <= absl::ZeroDuration()) return late();
    // A watch that ends early, or breaks with its connection, says nothing about the operation.
    if (!watched.ok() && !absl::IsDeadlineExceeded(watched) && !absl::IsUnavailable(watched)) {
      return NotFollowed(watched, id);
    }
    if (absl::IsUnavailable(watched)) unreachable_since = std::min(unreachable_since, clock.Now());
    const CallOptions poll = {call.cancel, std::min(connection.options().call_timeout, left())};
    const absl::StatusOr<v1::Operation> polled = GetOperation(id, poll);
    if (polled.ok()) {
      heard(*polled);
      if (latest.done()) return latest;
      if (watched.ok() || absl::IsDeadlineExceeded(watched)) backoff.Reset();
    } else if (cancelled()) {
      return stopped;
    } else if (left() <= absl::ZeroDuration()) {
      return late();
    } else if (!absl::IsUnavailable(polled.status())) {
      return NotFollowed(polled.status(), id);
    } else {
      unreachable_since = std::min(unreachable_since, clock.Now());
      if (clock.Now() - unreachable_since >= connection.options().lost_timeout) {
        return NotFollowed(polled.status(), id);
      }
    }
    if (!clock.Wait(std::min(backoff.Next(), left()), call.cancel)) return stopped;
  }
}

absl::StatusOr<v1::Operation> Client::Finish(absl::StatusOr<v1::Operation> accepted,
                                             const OnProgress& on_progress,
                                             const CallOptions& call) {
  if (!accepted.ok()) return accepted;
  absl::StatusOr<v1::Operation> ended = Wait(*accepted, on_progress, call);
  if (!ended.ok()) return ended;
  if (absl::Status outcome = OutcomeOf(*ended); !outcome.ok()) return outcome;
  return ended;
}

absl::Status Client::Train(v1::TrainRequest request,
                           const std::function<void(const v1::TrainRecord&)>& on_record,
                           const CallOptions& call, std::string* operation) {
  FillRequestId(&request);
  grpc::ClientContext context;
  if (call.timeout.has_value()) context.set_deadline(GrpcDeadline(*call.timeout));
  std::string id;
  CallPump pump(&context, &impl_->connection.clock(), call.cancel, impl_->probe_after(),
                impl_->Prober(), [&] { return impl_->AskToEnd(id); });
  absl::Status status = ReadStream<v1::TrainRecord>(
      &pump, impl_->connection.stub().PrepareAsyncTrain(&context, request, pump.queue()),
      [&](const v1::TrainRecord& record) {
        if (!record.operation().empty()) id = record.operation();
        if (on_record != nullptr) on_record(record);
      },
      [&] { id = OperationIn(context); });
  if (operation != nullptr) *operation = id;
  return status;
}

absl::StatusOr<v1::GenerateResponse> Client::Generate(
    v1::GenerateRequest request,
    const std::function<void(const v1::GenerateResponse&)>& on_progress, const CallOptions& call) {
  FillRequestId(&request);
  grpc::ClientContext context;
  if (call.timeout.has_value()) context.set_deadline(GrpcDeadline(*call.timeout));
  CallPump pump(&context, &impl_->connection.clock(), call.cancel, impl_->probe_after(),
                impl_->Prober());
  v1::GenerateResponse last;
  const absl::Status status = ReadStream<v1::GenerateResponse>(
      &pump, impl_->connection.stub().PrepareAsyncGenerate(&context, request, pump.queue()),
      [&](v1::GenerateResponse response) {
        if (!response.done() && on_progress != nullptr) on_progress(response);
        last = std::move(response);
      });
  // A generation that is cancelled may still have said what there is.
  if (!status.ok() && !(absl::IsCancelled(status) && last.done())) return status;
  if (!last.done()) return absl::InternalError("the server ended the stream without outputs");
  return last;
}

}  // namespace regroup
