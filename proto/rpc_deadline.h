// What every service asks of a call.
#ifndef PROTO_RPC_DEADLINE_H_
#define PROTO_RPC_DEADLINE_H_

#include <chrono>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "grpcpp/support/server_callback.h"
#include "proto/rpc_status.h"

namespace regroup {

// How long the caller of a unary call waits. INVALID_ARGUMENT if it would wait for ever.
inline absl::StatusOr<absl::Duration> TimeLeft(const grpc::CallbackServerContext& context) {
  if (context.deadline() == std::chrono::system_clock::time_point::max()) {
    return MakeError(absl::StatusCode::kInvalidArgument,
                     "the call has no deadline; allowed: unary calls with a deadline",
                     v1::ERROR_REASON_INVALID_FIELD);
  }
  return absl::FromChrono(context.deadline()) - absl::Now();
}

// Answers at once.
inline grpc::ServerUnaryReactor* Reply(grpc::CallbackServerContext* context,
                                       const absl::Status& status) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(ToGrpc(status));
  return reactor;
}

}  // namespace regroup

#endif  // PROTO_RPC_DEADLINE_H_
