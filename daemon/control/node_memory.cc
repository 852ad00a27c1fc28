#include "daemon/control/node_memory.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "engine/layout/human_text.h"
#include "proto/rpc_status.h"

namespace regroup {

void NodeMemory::Add(int64_t needed, int64_t available) {
  if (needed <= 0) return;
  ++ranks_;
  needed_ += std::min(needed, std::numeric_limits<int64_t>::max() - needed_);
  available_ = std::min(available_, available);
}

absl::Status NodeMemory::Check() const {
  if (needed_ <= available_) return absl::OkStatus();
  return MakeError(absl::StatusCode::kResourceExhausted,
                   absl::StrCat("--ranks: its ", ranks_, " ranks need ", HumanBytes(needed_),
                                " together; allowed: at most the ", HumanBytes(available_),
                                " that are free on their machine"),
                   v1::ERROR_REASON_MEMORY);
}

}  // namespace regroup
