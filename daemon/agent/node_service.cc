#include "daemon/agent/node_service.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "daemon/node/steady_clock.h"
#include "proto/rpc_deadline.h"
#include "proto/rpc_status.h"

namespace regroup {
namespace {

constexpr char kControlPrefix[] = "/regroup.v1.Control/";

absl::Status NotPrimary(const NodeIdentity& identity) {
  return MakeError(absl::StatusCode::kFailedPrecondition,
                   absl::StrCat("node ", identity.name, " is no primary: it has joined ",
                                identity.primary, "; allowed: --server=", identity.primary),
                   v1::ERROR_REASON_UNSPECIFIED);
}

class Refusal final : public grpc::ServerGenericBidiReactor {
 public:
  explicit Refusal(const absl::Status& status) { Finish(ToGrpc(status)); }
  void OnDone() override { delete this; }
};

}  // namespace

NodeService::NodeService(NodeIdentity identity, RankTable* ranks, Killer killer)
    : identity_(std::move(identity)),
      ranks_(ranks),
      killer_(std::move(killer)),
      asked_(SteadyNow()) {}

grpc::ServerUnaryReactor* NodeService::Join(grpc::CallbackServerContext* context,
                                            const v1::JoinRequest*, v1::JoinResponse*) {
  return Reply(context, NotPrimary(identity_));
}

grpc::ServerUnaryReactor* NodeService::GetNode(grpc::CallbackServerContext* context,
                                               const v1::GetNodeRequest* request,
                                               v1::NodeReport* response) {
  if (const auto left = TimeLeft(*context); !left.ok()) return Reply(context, left.status());
  if (request->incarnation() != identity_.incarnation) {
    return Reply(context, MakeError(absl::StatusCode::kAborted,
                                    absl::StrCat("node ", identity_.name, " runs as incarnation ",
                                                 identity_.incarnation, ", the call is for ",
                                                 request->incarnation()),
                                    v1::ERROR_REASON_STALE));
  }
  {
    absl::MutexLock lock(&mutex_);
    asked_ = SteadyNow();
  }
  response->set_node(identity_.name);
  for (const RankInfo& info : ranks_->List()) {
    v1::RankReport& report = *response->add_ranks();
    report.set_rank(info.rank);
    report.set_state(info.state);
    report.set_how(info.how);
    report.set_error(info.error);
    if (info.pid == 0) continue;
    report.set_pid(info.pid);
    report.set_incarnation(info.incarnation);
    v1::WorkerState state = ranks_->StateOf({info.rank, info.incarnation});
    if (state.incarnation() == info.incarnation) *report.mutable_worker() = std::move(state);
  }
  return Reply(context, absl::OkStatus());
}

grpc::ServerUnaryReactor* NodeService::KillWorker(grpc::CallbackServerContext* context,
                                                  const v1::KillWorkerRequest* request,
                                                  v1::KillWorkerResponse*) {
  if (const auto left = TimeLeft(*context); !left.ok()) return Reply(context, left.status());
  killer_({request->rank(), request->incarnation()}, request->reason());
  return Reply(context, absl::OkStatus());
}

absl::Duration NodeService::Unasked() const {
  absl::MutexLock lock(&mutex_);
  return SteadyNow() - asked_;
}

grpc::ServerGenericBidiReactor* NoControl::CreateReactor(
    grpc::GenericCallbackServerContext* context) {
  if (absl::StartsWith(context->method(), kControlPrefix))
    return new Refusal(NotPrimary(identity_));
  return new Refusal(absl::UnimplementedError(absl::StrCat("there is no ", context->method())));
}

}  // namespace regroup
