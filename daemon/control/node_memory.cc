#include "daemon/control/node_memory.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "proto/rpc_status.h"

namespace regroup {

std::string BytesText(int64_t bytes) {
  if (bytes < 1000) return absl::StrCat(bytes, " B");
  if (bytes < 1000000) return absl::StrFormat("%.1f kB", static_cast<double>(bytes) / 1e3);
  if (bytes < 1000000000) return absl::StrFormat("%.1f MB", static_cast<double>(bytes) / 1e6);
  return absl::StrFormat("%.2f GB", static_cast<double>(bytes) / 1e9);
}

void NodeMemory::Add(int64_t needed, int64_t available) {
  if (needed <= 0) return;
  ++ranks_;
  needed_ += std::min(needed, std::numeric_limits<int64_t>::max() - needed_);
  available_ = std::min(available_, available);
}

absl::Status NodeMemory::Check() const {
  if (needed_ <= available_) return absl::OkStatus();
  return MakeError(absl::StatusCode::kResourceExhausted,
                   absl::StrCat("--ranks: its ", ranks_, " ranks need ", BytesText(needed_),
                                " together; allowed: at most the ", BytesText(available_),
                                " that are free on their machine"),
                   v1::ERROR_REASON_MEMORY);
}

}  // namespace regroup
