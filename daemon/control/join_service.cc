#include "daemon/control/join_service.h"

#include <utility>

#include "proto/rpc_deadline.h"
#include "proto/rpc_status.h"

namespace regroup {
namespace {

absl::Status IsPrimary() {
  return MakeError(absl::StatusCode::kFailedPrecondition,
                   "this daemon is a primary, which has no primary of its own; allowed: a daemon "
                   "with --join",
                   v1::ERROR_REASON_UNSPECIFIED);
}

}  // namespace

grpc::ServerUnaryReactor* JoinService::Join(grpc::CallbackServerContext* context,
                                            const v1::JoinRequest* request,
                                            v1::JoinResponse* response) {
  const absl::StatusOr<absl::Duration> left = TimeLeft(*context);
  if (!left.ok()) return Reply(context, left.status());
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  const absl::Status started = cluster_->StartTask([this, request, response, reactor] {
    absl::StatusOr<v1::JoinResponse> joined = cluster_->Join(*request);
    const absl::Status status = joined.status();
    if (joined.ok()) *response = *std::move(joined);
    reactor->Finish(ToGrpc(status));
  });
  if (!started.ok()) reactor->Finish(ToGrpc(started));
  return reactor;
}

grpc::ServerUnaryReactor* JoinService::GetNode(grpc::CallbackServerContext* context,
                                               const v1::GetNodeRequest*, v1::NodeReport*) {
  return Reply(context, IsPrimary());
}

grpc::ServerUnaryReactor* JoinService::KillWorker(grpc::CallbackServerContext* context,
                                                  const v1::KillWorkerRequest*,
                                                  v1::KillWorkerResponse*) {
  return Reply(context, IsPrimary());
}

}  // namespace regroup
