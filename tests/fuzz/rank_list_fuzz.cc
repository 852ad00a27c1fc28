#include "absl/strings/string_view.h"
#include "engine/layout/rank_list.h"
#include "tests/fuzz/fuzz_target.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const absl::string_view text(reinterpret_cast<const char*>(data), size);
  const absl::StatusOr<std::vector<int>> ranks = regroup::ParseRankList(text);
  if (!ranks.ok()) return 0;
  regroup::Require(!ranks->empty() && ranks->size() <= regroup::kMaxRank + 1, "1 to all ranks");
  const auto again = regroup::ParseRankList(regroup::FormatRankList(*ranks));
  regroup::Require(again.ok() && *again == *ranks, "what is printed is read as the same list");
  return 0;
}
