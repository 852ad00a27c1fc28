// The way to one server: its channel, and how a unary call is sent until it is answered.
#ifndef CLIENT_CONNECTION_H_
#define CLIENT_CONNECTION_H_

#include <chrono>
#include <memory>
#include <random>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/client_options.h"
#include "client/stream.h"
#include "grpcpp/channel.h"
#include "grpcpp/client_context.h"
#include "grpcpp/support/async_unary_call.h"
#include "proto/rpc_status.h"
#include "regroup/v1/control.grpc.pb.h"

namespace regroup {

// The pauses between the attempts of one call: see ClientOptions. Not thread safe.
class Backoff {
 public:
  explicit Backoff(const ClientOptions& options);

  absl::Duration Next();
  void Reset() { next_ = first_; }

 private:
  const absl::Duration first_;
  const absl::Duration longest_;
  absl::Duration next_;
  std::minstd_rand random_;
};

// The server did not answer at all, as opposed to answering with this code.
bool IsUnreachable(const absl::Status& status);

// `left` from now, where gRPC reads the time; a day at most, for no call may be without a deadline.
std::chrono::system_clock::time_point GrpcDeadline(absl::Duration left);

// Thread safe.
class Connection {
 public:
  Connection(const std::string& target, const ClientOptions& options);

  v1::Control::Stub& stub() { return *stub_; }
  const ClientOptions& options() const { return options_; }
  ClientClock& clock() const { return *options_.clock; }

  template <class Request, class Response>
  using Method = std::unique_ptr<grpc::ClientAsyncResponseReader<Response>> (v1::Control::Stub::*)(
      grpc::ClientContext*, const Request&, grpc::CompletionQueue*);

  // Sends a request that may be sent twice until it is answered, at most max_attempts times and
  // within the call's timeout.
  template <class Request, class Response>
  absl::StatusOr<Response> Call(Method<Request, Response> method, const Request& request,
                                const CallOptions& call) {
    const absl::Time deadline = clock().Now() + call.timeout.value_or(options_.call_timeout);
    Backoff backoff(options_);
    for (int attempt = 1;; ++attempt) {
      Response response;
      const absl::Status status =
          CallOnce(method, request, call.cancel, deadline - clock().Now(), &response);
      if (status.ok()) return response;
      if (!IsUnreachable(status) || attempt >= options_.max_attempts) return status;
      const absl::Duration pause = backoff.Next();
      if (clock().Now() + pause >= deadline) return status;
      if (!clock().Wait(pause, call.cancel)) return absl::CancelledError("cancelled");
      AwaitConnection(deadline - clock().Now(), call.cancel);
    }
  }

  // Asks the server for its status: it answers this also while a collective hangs.
  absl::Status Probe(const absl::Notification* cancel);

 private:
  // Gives a connection that is being made a moment, `left` at most: gRPC goes on with it only while
  // somebody waits for it, and a call fails at once until it is there.
  void AwaitConnection(absl::Duration left, const absl::Notification* cancel);

  template <class Request, class Response>
  absl::Status CallOnce(Method<Request, Response> method, const Request& request,
                        const absl::Notification* cancel, absl::Duration left, Response* response) {
    grpc::ClientContext context;
    context.set_deadline(GrpcDeadline(left));
    CallPump pump(&context, options_.clock, cancel);
    grpc::Status answered;
    const auto reader = (stub_.get()->*method)(&context, request, pump.queue());
    reader->Finish(response, &answered, reader.get());
    pump.Next();
    return FromGrpc(answered);
  }

  const ClientOptions options_;
  const std::shared_ptr<grpc::Channel> channel_;
  const std::unique_ptr<v1::Control::Stub> stub_;
};

}  // namespace regroup

#endif  // CLIENT_CONNECTION_H_
