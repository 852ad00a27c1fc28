#include "daemon/control/node_table.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "daemon/control/field_error.h"
#include "engine/layout/rank_list.h"
#include "proto/rpc_status.h"

namespace regroup {
namespace {

std::string RangeText(int first, int count) {
  if (count == 0) return "no ranks";
  if (count == 1) return absl::StrCat("rank ", first);
  return absl::StrCat("ranks ", first, "-", first + count - 1);
}

absl::Status Refuse(absl::StatusCode code, const std::string& message) {
  return MakeError(code, message, v1::ERROR_REASON_INVALID_FIELD);
}

// A node that has one of these ranks; nullptr if none has.
const NodeRecord* FindOverlap(absl::Span<const NodeRecord> known, int first, int ranks) {
  for (const NodeRecord& node : known) {
    if (ranks == 0 || node.ranks == 0) continue;
    if (first < node.first_rank + node.ranks && node.first_rank < first + ranks) return &node;
  }
  return nullptr;
}

// Whether the node that is known may come back as `claim` says.
absl::StatusOr<int> KeepPlace(const NodeRecord& node, const NodeClaim& claim) {
  if (claim.ranks != node.ranks) {
    return Refuse(
        absl::StatusCode::kFailedPrecondition,
        absl::StrCat("--ranks=", claim.ranks, ": node ", node.name, " has ",
                     RangeText(node.first_rank, node.ranks),
                     " of this cluster; allowed: --ranks=", node.ranks, ", or another --node"));
  }
  if (claim.first_rank.has_value() && *claim.first_rank != node.first_rank) {
    return Refuse(
        absl::StatusCode::kFailedPrecondition,
        absl::StrCat("--first-rank=", *claim.first_rank, ": node ", node.name, " has ",
                     RangeText(node.first_rank, node.ranks),
                     " of this cluster; allowed: --first-rank=", node.first_rank, ", or none"));
  }
  return node.first_rank;
}

}  // namespace

absl::StatusOr<int> PlaceNode(absl::Span<const NodeRecord> known, const NodeClaim& claim) {
  int next = 0;
  for (const NodeRecord& node : known) {
    if (node.name == claim.name) return KeepPlace(node, claim);
    next = std::max(next, node.first_rank + node.ranks);
  }
  const int first = claim.first_rank.value_or(next);
  if (first < 0 || claim.ranks < 0 || first > kMaxRank + 1 - claim.ranks) {
    return FieldError("--first-rank", absl::StrCat(first),
                      absl::StrCat("is out of range for ", claim.ranks, " ranks"),
                      absl::StrCat("ranks 0 to ", kMaxRank));
  }
  if (const NodeRecord* node = FindOverlap(known, first, claim.ranks)) {
    return Refuse(absl::StatusCode::kAlreadyExists,
                  absl::StrCat("--first-rank=", first, " with --ranks=", claim.ranks, ": node ",
                               node->name, " has ", RangeText(node->first_rank, node->ranks),
                               "; allowed: ranks that no node has, or no --first-rank"));
  }
  return first;
}

namespace {

// Whether the primary may be `self`, given what the nodes that joined it have, and what it was
// itself by that name.
absl::Status CheckSelf(const NodeRecord& self, const absl::optional<NodeRecord>& before,
                       absl::Span<const NodeRecord> others) {
  if (others.empty()) return absl::OkStatus();  // alone, it may be what it likes
  std::vector<std::string> names;
  for (const NodeRecord& node : others) names.push_back(node.name);
  const std::string unlike =
      absl::StrCat("allowed: a name that none of the nodes of this cluster has (",
                   absl::StrJoin(names, ", "), ")");
  for (const NodeRecord& node : others) {
    if (node.name == self.name) {
      return Refuse(absl::StatusCode::kAlreadyExists,
                    absl::StrCat("--node=", self.name, ": the node of that name, with ",
                                 RangeText(node.first_rank, node.ranks),
                                 " of this cluster, joined it; ", unlike));
    }
  }
  const NodeClaim claim{self.name, self.ranks, self.first_rank};
  if (before.has_value()) {
    if (const auto kept = KeepPlace(*before, claim); !kept.ok()) return kept.status();
  }
  if (const NodeRecord* node = FindOverlap(others, self.first_rank, self.ranks)) {
    return Refuse(
        absl::StatusCode::kAlreadyExists,
        absl::StrCat("--ranks=", self.ranks, " of --node=", self.name, ", from rank ",
                     self.first_rank, ": node ", node->name, " has ",
                     RangeText(node->first_rank, node->ranks),
                     " of this cluster; allowed: ranks that no other node has, or another "
                     "--state-dir"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status NodeTable::Restore() {
  if (store_ == nullptr) return absl::OkStatus();
  const absl::StatusOr<std::vector<StoredNode>> stored = store_->Nodes();
  if (!stored.ok()) return stored.status();
  absl::MutexLock lock(&mutex_);
  const NodeRecord self = nodes_.front();
  std::vector<NodeRecord> others;
  absl::optional<NodeRecord> before;  // this node as it was
  for (const StoredNode& row : *stored) {
    NodeRecord node;
    node.name = row.name;
    node.address = row.address;
    node.first_rank = row.first_rank;
    node.ranks = row.ranks;
    node.state = v1::NODE_STATE_LOST;
    if (row.self && row.name == self.name) {
      before = node;
    } else if (!row.self) {
      others.push_back(node);
    }
  }
  if (absl::Status status = CheckSelf(self, before, others); !status.ok()) return status;
  for (const NodeRecord& node : others) nodes_.push_back(node);
  return store_->PutNode({self.name, "", self.first_rank, self.ranks, true});
}

std::vector<NodeRecord> NodeTable::List() const {
  absl::MutexLock lock(&mutex_);
  return nodes_;
}

absl::optional<NodeRecord> NodeTable::Find(const std::string& name) const {
  absl::MutexLock lock(&mutex_);
  for (const NodeRecord& node : nodes_) {
    if (node.name == name) return node;
  }
  return absl::nullopt;
}

absl::StatusOr<NodeRecord> NodeTable::Put(const NodeClaim& claim, const std::string& address,
                                          uint64_t incarnation) {
  absl::MutexLock lock(&mutex_);
  const absl::StatusOr<int> first = PlaceNode(nodes_, claim);
  if (!first.ok()) return first.status();
  if (store_ != nullptr) {
    absl::Status saved = store_->PutNode({claim.name, address, *first, claim.ranks, false});
    if (!saved.ok()) return saved;
  }
  const auto found = std::find_if(nodes_.begin(), nodes_.end(),
                                  [&](const NodeRecord& node) { return node.name == claim.name; });
  NodeRecord& node = found == nodes_.end() ? nodes_.emplace_back() : *found;
  node.name = claim.name;
  node.address = address;
  node.first_rank = *first;
  node.ranks = claim.ranks;
  node.incarnation = incarnation;
  node.state = v1::NODE_STATE_READY;
  return node;
}

void NodeTable::SetState(const std::string& name, v1::NodeState state) {
  absl::MutexLock lock(&mutex_);
  for (NodeRecord& node : nodes_) {
    if (node.name == name) node.state = state;
  }
}

void NodeTable::SetOwnAddress(const std::string& address) {
  absl::MutexLock lock(&mutex_);
  nodes_.front().address = address;
}

bool Hearing::Silent(absl::Time now) {
  const absl::Duration pause = now - looked_ - kLongestLook;
  looked_ = now;
  if (pause > absl::ZeroDuration()) heard_ += pause;
  return now - heard_ >= limit_;
}

}  // namespace regroup
