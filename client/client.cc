#include "client/client.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <random>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "client/stream.h"
#include "grpc/grpc.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/security/credentials.h"
#include "grpcpp/support/channel_arguments.h"
#include "proto/rpc_status.h"
#include "regroup/v1/control.grpc.pb.h"

namespace regroup {
namespace {

constexpr int kMaxMessageBytes = 64 << 20;

// A watch is opened anew this often, so that a server that hangs is noticed.
constexpr absl::Duration kWatchTimeout = absl::Seconds(60);
constexpr absl::Duration kFirstBackoff = absl::Milliseconds(100);
constexpr absl::Duration kMaxBackoff = absl::Seconds(1);
// Of a Train stream: the id of the operation that it is.
constexpr char kOperationKey[] = "regroup-operation";

std::shared_ptr<grpc::Channel> MakeChannel(const std::string& target) {
  // gRPC is never shut down: with its last object gone, that can wait 10 s for a connection to
  // close.
  static const bool kept = (grpc_init(), true);
  static_cast<void>(kept);
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(kMaxMessageBytes);
  arguments.SetMaxSendMessageSize(kMaxMessageBytes);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS,
                   static_cast<int>(absl::ToInt64Milliseconds(kFirstBackoff)));
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS,
                   static_cast<int>(absl::ToInt64Milliseconds(kMaxBackoff)));
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  // Two clients of one process do not share a connection: a test may restart the server between
  // them.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  return grpc::CreateCustomChannel(absl::StrCat("dns:///", target),
                                   grpc::InsecureChannelCredentials(), arguments);
}

// The server did not answer at all, as opposed to answering with this code.
bool IsUnreachable(const absl::Status& status) {
  return absl::IsUnavailable(status) && !DetailOf(status).has_value();
}

absl::Status NotFollowed(const absl::Status& status, const std::string& id) {
  const std::string message = absl::StrCat("operation ", id, ": ", status.message());
  const std::optional<v1::ErrorDetail> detail = DetailOf(status);
  return detail.has_value() ? MakeError(status.code(), message, *detail)
                            : absl::Status(status.code(), message);
}

// False if the call is cancelled meanwhile.
bool Pause(absl::Duration duration, const absl::Notification* cancel) {
  if (cancel != nullptr) return !cancel->WaitForNotificationWithTimeout(duration);
  absl::SleepFor(duration);
  return true;
}

// Of a call that has ended.
std::string OperationOf(const grpc::ClientContext& context) {
  const auto& metadata = context.GetServerInitialMetadata();
  const auto entry = metadata.find(kOperationKey);
  return entry == metadata.end() ? "" : std::string(entry->second.data(), entry->second.size());
}

template <class Request>
void FillRequestId(Request* request) {
  if (request->request_id().empty()) request->set_request_id(NewRequestId());
}

}  // namespace

std::string NewRequestId() {
  std::random_device device;
  std::string id;
  for (int i = 0; i < 4; ++i) {
    absl::StrAppendFormat(&id, "%08x", static_cast<uint32_t>(device()));
  }
  return id;
}

absl::Status CheckTarget(absl::string_view target) {
  absl::Status wrong = absl::InvalidArgumentError(
      absl::StrCat("\"", target, "\" is not a server; allowed: HOST:PORT with a port in 1..65535"));
  const size_t colon = target.rfind(':');
  if (colon == absl::string_view::npos || colon == 0) return wrong;
  absl::string_view host = target.substr(0, colon);
  const absl::string_view port = target.substr(colon + 1);
  int number = 0;
  if (port.empty() || port.size() > 5 ||
      !std::all_of(port.begin(), port.end(), [](char c) { return absl::ascii_isdigit(c); }) ||
      !absl::SimpleAtoi(port, &number) || number < 1 || number > 65535) {
    return wrong;
  }
  const bool bracketed = host.size() > 2 && host.front() == '[' && host.back() == ']';
  if (bracketed) host = host.substr(1, host.size() - 2);
  const bool plain = std::all_of(host.begin(), host.end(), [&](char c) {
    return absl::ascii_isalnum(c) || c == '.' || c == '-' || c == '_' ||
           (bracketed && (c == ':' || c == '%'));
  });
  return plain ? absl::OkStatus() : wrong;
}

absl::Status OutcomeOf(const v1::Operation& operation) {
  if (!operation.done() || (operation.error().empty() && operation.error_code() == 0)) {
    return absl::OkStatus();
  }
  const absl::StatusCode code = operation.error_code() == 0
                                    ? absl::StatusCode::kUnknown
                                    : static_cast<absl::StatusCode>(operation.error_code());
  v1::ErrorDetail detail = operation.error_detail();
  // The server did answer, so the error keeps a detail even if it says no more than this.
  if (detail.engine().empty()) detail.set_engine(operation.engine());
  if (detail.phase().empty()) detail.set_phase(operation.phase());
  return MakeError(code, operation.error(), detail);
}

struct Client::Impl {
  std::string target;
  ClientOptions options;
  std::unique_ptr<v1::Control::Stub> stub;

  template <class Request, class Response>
  using Method = std::unique_ptr<grpc::ClientAsyncResponseReader<Response>> (v1::Control::Stub::*)(
      grpc::ClientContext*, const Request&, grpc::CompletionQueue*);

  // Sends a call until it is answered, at most `max_attempts` times and within the call's deadline.
  template <class Request, class Response>
  absl::StatusOr<Response> Call(Method<Request, Response> method, const Request& request,
                                const absl::Notification* cancel = nullptr) {
    const absl::Time deadline = absl::Now() + options.call_timeout;
    absl::Duration backoff = kFirstBackoff;
    for (int attempt = 1;; ++attempt) {
      grpc::ClientContext context;
      context.set_deadline(absl::ToChronoTime(deadline));
      CallPump pump(&context, cancel);
      Response response;
      grpc::Status answered;
      const auto reader = (stub.get()->*method)(&context, request, pump.queue());
      reader->Finish(&response, &answered, reader.get());
      pump.Next();
      absl::Status status = FromGrpc(answered);
      if (status.ok()) return response;
      if (!IsUnreachable(status) || attempt >= options.max_attempts ||
          absl::Now() + backoff >= deadline) {
        return status;
      }
      if (!Pause(backoff, cancel)) return absl::CancelledError("cancelled");
      backoff = std::min(backoff * 2, kMaxBackoff);
    }
  }

  template <class Request, class Response>
  absl::StatusOr<Response> Mutate(Method<Request, Response> method, Request request) {
    FillRequestId(&request);
    return Call(method, request);
  }

  // Asks the server for its status: it answers this also while a collective hangs.
  absl::Status Probe(const absl::Notification* cancel) {
    return Call(&v1::Control::Stub::AsyncGetStatus, v1::GetStatusRequest(), cancel).status();
  }
};

Client::Client(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Client::~Client() = default;

absl::StatusOr<std::unique_ptr<Client>> Client::Connect(const std::string& target,
                                                        const ClientOptions& options) {
  if (absl::Status status = CheckTarget(target); !status.ok()) return status;
  auto impl = std::make_unique<Impl>();
  impl->target = target;
  impl->options = options;
  impl->stub = v1::Control::NewStub(MakeChannel(target));
  return std::unique_ptr<Client>(new Client(std::move(impl)));
}

const std::string& Client::target() const { return impl_->target; }

absl::StatusOr<v1::GetStatusResponse> Client::GetStatus() {
  return impl_->Call(&v1::Control::Stub::AsyncGetStatus, v1::GetStatusRequest());
}

absl::StatusOr<v1::Engine> Client::DescribeEngine(absl::string_view name) {
  v1::DescribeEngineRequest request;
  request.set_name(std::string(name));
  return impl_->Call(&v1::Control::Stub::AsyncDescribeEngine, request);
}

absl::StatusOr<v1::EngineTrace> Client::TraceEngine(const v1::TraceEngineRequest& request) {
  return impl_->Call(&v1::Control::Stub::AsyncTraceEngine, request);
}

absl::StatusOr<v1::ListOperationsResponse> Client::ListOperations() {
  return impl_->Call(&v1::Control::Stub::AsyncListOperations, v1::ListOperationsRequest());
}

absl::StatusOr<v1::Operation> Client::GetOperation(absl::string_view id) {
  v1::GetOperationRequest request;
  request.set_id(std::string(id));
  return impl_->Call(&v1::Control::Stub::AsyncGetOperation, request);
}

absl::StatusOr<v1::Operation> Client::CreateEngine(v1::CreateEngineRequest request) {
  return impl_->Mutate(&v1::Control::Stub::AsyncCreateEngine, std::move(request));
}

absl::StatusOr<v1::Operation> Client::DeleteEngine(v1::DeleteEngineRequest request) {
  return impl_->Mutate(&v1::Control::Stub::AsyncDeleteEngine, std::move(request));
}

absl::StatusOr<v1::Operation> Client::RelayoutEngine(v1::RelayoutEngineRequest request) {
  return impl_->Mutate(&v1::Control::Stub::AsyncRelayoutEngine, std::move(request));
}

absl::StatusOr<v1::Operation> Client::SyncEngine(v1::SyncEngineRequest request) {
  return impl_->Mutate(&v1::Control::Stub::AsyncSyncEngine, std::move(request));
}

absl::StatusOr<v1::Operation> Client::ExportEngine(v1::ExportEngineRequest request) {
  return impl_->Mutate(&v1::Control::Stub::AsyncExportEngine, std::move(request));
}

absl::StatusOr<v1::Operation> Client::SaveCheckpoint(v1::CheckpointRequest request) {
  return impl_->Mutate(&v1::Control::Stub::AsyncSaveCheckpoint, std::move(request));
}

absl::StatusOr<v1::Operation> Client::LoadCheckpoint(v1::CheckpointRequest request) {
  return impl_->Mutate(&v1::Control::Stub::AsyncLoadCheckpoint, std::move(request));
}

absl::StatusOr<v1::Operation> Client::CancelOperation(v1::CancelOperationRequest request) {
  return impl_->Mutate(&v1::Control::Stub::AsyncCancelOperation, std::move(request));
}

absl::StatusOr<v1::Operation> Client::SetEngine(v1::SetEngineRequest request) {
  return impl_->Mutate(&v1::Control::Stub::AsyncSetEngine, std::move(request));
}

absl::Status Client::WatchOnce(const std::string& id, v1::Operation* latest,
                               const std::function<void(const v1::Operation&)>& on_progress,
                               const absl::Notification* cancel) {
  v1::GetOperationRequest request;
  request.set_id(id);
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + kWatchTimeout));
  CallPump pump(&context, cancel, impl_->options.probe_after,
                [this](const absl::Notification* c) { return impl_->Probe(c); });
  return ReadStream<v1::Operation>(
      &pump, impl_->stub->PrepareAsyncWatchOperation(&context, request, pump.queue()),
      [&](v1::Operation operation) {
        *latest = std::move(operation);
        if (on_progress != nullptr) on_progress(*latest);
      });
}

absl::StatusOr<v1::Operation> Client::Wait(
    const v1::Operation& operation, const std::function<void(const v1::Operation&)>& on_progress,
    const absl::Notification* cancel) {
  const std::string& id = operation.id();
  v1::Operation latest = operation;
  if (latest.done()) {
    if (on_progress != nullptr) on_progress(latest);
    return latest;
  }
  v1::GetOperationRequest poll;
  poll.set_id(id);
  absl::Time unreachable_since = absl::InfiniteFuture();
  absl::Duration backoff = kFirstBackoff;
  const auto heard = [&](const v1::Operation& now) {
    unreachable_since = absl::InfiniteFuture();
    if (on_progress != nullptr) on_progress(now);
  };
  const absl::Status stopped =
      absl::CancelledError(absl::StrCat("operation ", id, ": stopped waiting"));
  while (true) {
    const absl::Status watched = WatchOnce(id, &latest, heard, cancel);
    if (latest.done()) return latest;
    if (cancel != nullptr && cancel->HasBeenNotified()) return stopped;
    // A watch that ends early, or breaks with its connection, says nothing about the operation.
    if (!watched.ok() && !absl::IsDeadlineExceeded(watched) && !absl::IsUnavailable(watched)) {
      return NotFollowed(watched, id);
    }
    if (absl::IsUnavailable(watched)) unreachable_since = std::min(unreachable_since, absl::Now());
    absl::StatusOr<v1::Operation> polled =
        impl_->Call(&v1::Control::Stub::AsyncGetOperation, poll, cancel);
    if (polled.ok()) {
      latest = *std::move(polled);
      heard(latest);
      if (latest.done()) return latest;
      if (watched.ok() || absl::IsDeadlineExceeded(watched)) backoff = kFirstBackoff;
    } else if (cancel != nullptr && cancel->HasBeenNotified()) {
      return stopped;
    } else if (!absl::IsUnavailable(polled.status())) {
      return NotFollowed(polled.status(), id);
    } else {
      unreachable_since = std::min(unreachable_since, absl::Now());
      if (absl::Now() - unreachable_since >= impl_->options.lost_timeout) {
        return NotFollowed(polled.status(), id);
      }
    }
    if (!Pause(backoff, cancel)) return stopped;
    backoff = std::min(backoff * 2, kMaxBackoff);
  }
}

absl::Status Client::Train(v1::TrainRequest request,
                           const std::function<void(const v1::TrainRecord&)>& on_record,
                           const absl::Notification* cancel, std::string* operation) {
  FillRequestId(&request);
  grpc::ClientContext context;
  CallPump pump(&context, cancel, impl_->options.probe_after,
                [this](const absl::Notification* c) { return impl_->Probe(c); });
  std::string of_record;
  absl::Status status = ReadStream<v1::TrainRecord>(
      &pump, impl_->stub->PrepareAsyncTrain(&context, request, pump.queue()),
      [&](const v1::TrainRecord& record) {
        of_record = record.operation();
        if (on_record != nullptr) on_record(record);
      });
  if (operation != nullptr) {
    *operation = OperationOf(context);
    if (operation->empty()) *operation = of_record;
  }
  return status;
}

absl::StatusOr<v1::GenerateResponse> Client::Generate(
    v1::GenerateRequest request,
    const std::function<void(const v1::GenerateResponse&)>& on_progress,
    const absl::Notification* cancel) {
  FillRequestId(&request);
  grpc::ClientContext context;
  CallPump pump(&context, cancel, impl_->options.probe_after,
                [this](const absl::Notification* c) { return impl_->Probe(c); });
  v1::GenerateResponse last;
  const absl::Status status = ReadStream<v1::GenerateResponse>(
      &pump, impl_->stub->PrepareAsyncGenerate(&context, request, pump.queue()),
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
