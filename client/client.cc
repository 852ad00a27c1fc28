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
  using Method = grpc::Status (v1::Control::Stub::*)(grpc::ClientContext*, const Request&,
                                                     Response*);

  // Sends a call until it is answered, at most `max_attempts` times and within the call's deadline.
  template <class Request, class Response>
  absl::StatusOr<Response> Call(Method<Request, Response> method, const Request& request) {
    const absl::Time deadline = absl::Now() + options.call_timeout;
    absl::Duration backoff = kFirstBackoff;
    for (int attempt = 1;; ++attempt) {
      grpc::ClientContext context;
      context.set_deadline(absl::ToChronoTime(deadline));
      Response response;
      const absl::Status status = FromGrpc((stub.get()->*method)(&context, request, &response));
      if (status.ok()) return response;
      if (!IsUnreachable(status) || attempt >= options.max_attempts ||
          absl::Now() + backoff >= deadline) {
        return status;
      }
      absl::SleepFor(backoff);
      backoff = std::min(backoff * 2, kMaxBackoff);
    }
  }

  template <class Request, class Response>
  absl::StatusOr<Response> Mutate(Method<Request, Response> method, Request request) {
    FillRequestId(&request);
    return Call(method, request);
  }

  // Asks the server for its status: it answers this also while a collective hangs.
  absl::Status Probe() {
    return Call(&v1::Control::Stub::GetStatus, v1::GetStatusRequest()).status();
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
  return impl_->Call(&v1::Control::Stub::GetStatus, v1::GetStatusRequest());
}

absl::StatusOr<v1::Engine> Client::DescribeEngine(absl::string_view name) {
  v1::DescribeEngineRequest request;
  request.set_name(std::string(name));
  return impl_->Call(&v1::Control::Stub::DescribeEngine, request);
}

absl::StatusOr<v1::EngineTrace> Client::TraceEngine(const v1::TraceEngineRequest& request) {
  return impl_->Call(&v1::Control::Stub::TraceEngine, request);
}

absl::StatusOr<v1::ListOperationsResponse> Client::ListOperations() {
  return impl_->Call(&v1::Control::Stub::ListOperations, v1::ListOperationsRequest());
}

absl::StatusOr<v1::Operation> Client::GetOperation(absl::string_view id) {
  v1::GetOperationRequest request;
  request.set_id(std::string(id));
  return impl_->Call(&v1::Control::Stub::GetOperation, request);
}

absl::StatusOr<v1::Operation> Client::CreateEngine(v1::CreateEngineRequest request) {
  return impl_->Mutate(&v1::Control::Stub::CreateEngine, std::move(request));
}

absl::StatusOr<v1::Operation> Client::DeleteEngine(v1::DeleteEngineRequest request) {
  return impl_->Mutate(&v1::Control::Stub::DeleteEngine, std::move(request));
}

absl::StatusOr<v1::Operation> Client::RelayoutEngine(v1::RelayoutEngineRequest request) {
  return impl_->Mutate(&v1::Control::Stub::RelayoutEngine, std::move(request));
}

absl::StatusOr<v1::Operation> Client::SyncEngine(v1::SyncEngineRequest request) {
  return impl_->Mutate(&v1::Control::Stub::SyncEngine, std::move(request));
}

absl::StatusOr<v1::Operation> Client::ExportEngine(v1::ExportEngineRequest request) {
  return impl_->Mutate(&v1::Control::Stub::ExportEngine, std::move(request));
}

absl::StatusOr<v1::Operation> Client::SaveCheckpoint(v1::CheckpointRequest request) {
  return impl_->Mutate(&v1::Control::Stub::SaveCheckpoint, std::move(request));
}

absl::StatusOr<v1::Operation> Client::LoadCheckpoint(v1::CheckpointRequest request) {
  return impl_->Mutate(&v1::Control::Stub::LoadCheckpoint, std::move(request));
}

absl::StatusOr<v1::Operation> Client::CancelOperation(v1::CancelOperationRequest request) {
  return impl_->Mutate(&v1::Control::Stub::CancelOperation, std::move(request));
}

absl::StatusOr<v1::Engine> Client::SetEngine(v1::SetEngineRequest request) {
  return impl_->Mutate(&v1::Control::Stub::SetEngine, std::move(request));
}

absl::Status Client::WatchOnce(const std::string& id, v1::Operation* latest,
                               const std::function<void(const v1::Operation&)>& on_progress,
                               const absl::Notification* cancel) {
  v1::GetOperationRequest request;
  request.set_id(id);
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + kWatchTimeout));
  StreamPump pump(&context, cancel, impl_->options.probe_after, [this] { return impl_->Probe(); });
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
  absl::Time last_answer = absl::Now();
  absl::Duration backoff = kFirstBackoff;
  while (true) {
    const absl::Status watched = WatchOnce(id, &latest, on_progress, cancel);
    if (latest.done()) return latest;
    if (cancel != nullptr && cancel->HasBeenNotified()) {
      return absl::CancelledError(absl::StrCat("operation ", id, ": stopped waiting"));
    }
    // A watch that ends early, or breaks with its connection, says nothing about the operation.
    if (!watched.ok() && !absl::IsDeadlineExceeded(watched) && !absl::IsUnavailable(watched)) {
      return NotFollowed(watched, id);
    }
    absl::StatusOr<v1::Operation> polled = GetOperation(id);
    if (polled.ok()) {
      latest = *std::move(polled);
      if (on_progress != nullptr) on_progress(latest);
      if (latest.done()) return latest;
      last_answer = absl::Now();
      if (watched.ok() || absl::IsDeadlineExceeded(watched)) backoff = kFirstBackoff;
    } else if (!absl::IsUnavailable(polled.status()) ||
               absl::Now() - last_answer >= impl_->options.lost_timeout) {
      return NotFollowed(polled.status(), id);
    }
    if (cancel != nullptr) {
      cancel->WaitForNotificationWithTimeout(backoff);
    } else {
      absl::SleepFor(backoff);
    }
    backoff = std::min(backoff * 2, kMaxBackoff);
  }
}

absl::Status Client::Train(v1::TrainRequest request,
                           const std::function<void(const v1::TrainRecord&)>& on_record,
                           const absl::Notification* cancel) {
  FillRequestId(&request);
  grpc::ClientContext context;
  StreamPump pump(&context, cancel, impl_->options.probe_after, [this] { return impl_->Probe(); });
  return ReadStream<v1::TrainRecord>(
      &pump, impl_->stub->PrepareAsyncTrain(&context, request, pump.queue()),
      [&](const v1::TrainRecord& record) {
        if (on_record != nullptr) on_record(record);
      });
}

absl::StatusOr<v1::GenerateResponse> Client::Generate(
    v1::GenerateRequest request,
    const std::function<void(const v1::GenerateResponse&)>& on_progress,
    const absl::Notification* cancel) {
  FillRequestId(&request);
  grpc::ClientContext context;
  StreamPump pump(&context, cancel, impl_->options.probe_after, [this] { return impl_->Probe(); });
  v1::GenerateResponse last;
  const absl::Status status = ReadStream<v1::GenerateResponse>(
      &pump, impl_->stub->PrepareAsyncGenerate(&context, request, pump.queue()),
      [&](v1::GenerateResponse response) {
        if (!response.done() && on_progress != nullptr) on_progress(response);
        last = std::move(response);
      });
  if (!status.ok()) return status;
  if (!last.done()) return absl::InternalError("the server ended the stream without outputs");
  return last;
}

}  // namespace regroup
