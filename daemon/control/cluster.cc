#include "daemon/control/cluster.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/control/field_error.h"
#include "daemon/control/node_table.h"
#include "daemon/control/validate.h"
#include "proto/rpc_status.h"
#include "spdlog/spdlog.h"

namespace regroup {
namespace {

constexpr int kMaxRanks = 1024;
constexpr size_t kMaxAddressBytes = 300;

absl::Status CheckJoin(const v1::JoinRequest& request) {
  if (absl::Status status = CheckName("--node", request.node()); !status.ok()) return status;
  if (request.address().empty() || request.address().size() > kMaxAddressBytes) {
    return FieldError("address", request.address(), "is not one", "HOST:PORT");
  }
  if (request.ranks() < 0 || request.ranks() > kMaxRanks) {
    return FieldError("--ranks", absl::StrCat(request.ranks()), "is out of range",
                      absl::StrCat("0 to ", kMaxRanks));
  }
  if (request.incarnation() == 0) {
    return FieldError("incarnation", "0", "is missing", "a random number");
  }
  return absl::OkStatus();
}

absl::Status NameTaken(const NodeRecord& node) {
  return MakeError(absl::StatusCode::kAlreadyExists,
                   absl::StrCat("--node=", node.name, " is taken by the daemon at ", node.address,
                                ", which lives; allowed: a name that no living daemon of this "
                                "cluster has"),
                   v1::ERROR_REASON_INVALID_FIELD);
}

absl::Status OtherCluster(const std::string& primary, const std::string& node) {
  return MakeError(
      absl::StatusCode::kFailedPrecondition,
      absl::StrCat("node ", node, " belongs to another cluster than primary ", primary,
                   " has in its --state-dir; allowed: the --state-dir that the primary had, or a "
                   "new start of ",
                   node, ", which gives up the engines on its ranks"),
      v1::ERROR_REASON_INVALID_FIELD);
}

}  // namespace

// Workers of one engine meet over IPv4 or over IPv6: gloo joins no two.
absl::Status Cluster::CheckFamily(const v1::JoinRequest& request) const {
  const NodeRecord self = control_->nodes().List().front();
  if (meeting_.empty() || self.ranks == 0 || request.ranks() == 0) return absl::OkStatus();
  const bool is_v6 = request.address().front() == '[';
  if (is_v6 == (meeting_.find(':') != std::string::npos)) return absl::OkStatus();
  return FieldError(
      "--advertise", request.address(),
      absl::StrCat("is an ", is_v6 ? "IPv6" : "IPv4", " address, and the workers of node ",
                   self.name, " meet at ", meeting_),
      absl::StrCat("an ", is_v6 ? "IPv4" : "IPv6", " address, or another --advertise of node ",
                   self.name));
}

std::shared_ptr<NodeWatcher> Cluster::Find(const std::string& name) {
  absl::MutexLock lock(&mutex_);
  const auto found = watchers_.find(name);
  return found == watchers_.end() ? nullptr : found->second;
}

absl::StatusOr<v1::JoinResponse> Cluster::Join(const v1::JoinRequest& request) {
  if (absl::Status status = CheckJoin(request); !status.ok()) return status;
  NodeTable& nodes = control_->nodes();
  const NodeRecord self = nodes.List().front();
  if (request.node() == self.name) return NameTaken(self);
  if (request.cluster() != 0 && request.cluster() != id_) {
    return OtherCluster(self.name, request.node());
  }
  NodeClaim claim{request.node(), request.ranks(), absl::nullopt};
  if (!request.any_first_rank()) claim.first_rank = request.first_rank();
  // What cannot be is refused before anybody is waited for.
  if (const auto place = PlaceNode(nodes.List(), claim); !place.ok()) return place.status();
  if (absl::Status status = CheckFamily(request); !status.ok()) return status;
  v1::JoinResponse response;
  response.set_primary(self.name);
  response.set_cluster(id_);

  std::shared_ptr<NodeWatcher> earlier = Find(request.node());
  if (earlier != nullptr && earlier->node().incarnation == request.incarnation()) {
    response.set_first_rank(earlier->node().first_rank);
    return response;
  }
  if (earlier != nullptr && earlier->AwaitVerdict()) return NameTaken(earlier->node());
  std::shared_ptr<NodeWatcher> replaced;  // ends once the lock is free
  absl::MutexLock lock(&mutex_);
  std::shared_ptr<NodeWatcher>& watcher = watchers_[request.node()];
  if (watcher != earlier) {
    return MakeError(absl::StatusCode::kUnavailable,
                     absl::StrCat("--node=", request.node(), ": another daemon joins by that name"),
                     v1::ERROR_REASON_UNSPECIFIED);
  }
  const absl::StatusOr<NodeRecord> node =
      nodes.Put(claim, request.address(), request.incarnation());
  if (!node.ok()) {
    if (watcher == nullptr) watchers_.erase(request.node());
    return node.status();
  }
  ranks_->AddRanks(node->first_rank, node->ranks, node->name);
  spdlog::info("node {} at {}: joined with {} ranks from {}", node->name, node->address,
               node->ranks, node->first_rank);
  replaced = std::move(watcher);
  NodeWatcher::Hooks hooks;
  hooks.state = [this, name = node->name](v1::NodeState state) {
    control_->nodes().SetState(name, state);
  };
  hooks.attached = [this](const WorkerRef& ref, const v1::WorkerState& state) {
    control_->Attached(ref, state);
  };
  watcher = std::make_shared<NodeWatcher>(*node, ranks_, options_, std::move(hooks));
  response.set_first_rank(node->first_rank);
  return response;
}

void Cluster::Kill(const WorkerRef& ref, const std::string& reason) {
  if (const auto watcher = Find(ranks_->NodeOf(ref.rank))) watcher->Kill(ref, reason);
}

}  // namespace regroup
