#include "daemon/control/node_memory.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "engine/layout/human_text.h"
#include "proto/rpc_status.h"

namespace regroup {

void NodeMemory::Add(const std::string& node, int64_t needed, int64_t available) {
  if (needed <= 0) return;
  Sum& sum = sums_[node];
  ++sum.ranks;
  sum.needed += std::min(needed, std::numeric_limits<int64_t>::max() - sum.needed);
  sum.available = std::min(sum.available, available);
}

absl::Status NodeMemory::Check() const {
  for (const auto& [node, sum] : sums_) {
    if (sum.needed <= sum.available) continue;
    return MakeError(
        absl::StatusCode::kResourceExhausted,
        absl::StrCat("--ranks: its ", sum.ranks, " ranks", node.empty() ? "" : " on node ", node,
                     " need ", HumanBytes(sum.needed), " together; allowed: at most the ",
                     HumanBytes(sum.available), " that are free on their machine"),
        v1::ERROR_REASON_MEMORY);
  }
  return absl::OkStatus();
}

}  // namespace regroup
