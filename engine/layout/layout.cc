#include "engine/layout/layout.h"

#include <algorithm>
#include <cstdint>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "engine/layout/rank_list.h"

namespace regroup {
namespace {

// A rank list for a message: long ones are cut.
std::string ShortRanks(const std::vector<int>& ranks) {
  constexpr size_t kMost = 80;
  std::string text = FormatRankList(ranks);
  if (text.size() > kMost) text = text.substr(0, kMost) + "...";
  return text;
}

absl::Status CheckRanks(const std::vector<int>& ranks) {
  if (ranks.empty()) {
    return absl::InvalidArgumentError(
        "--ranks: no rank is given; allowed: at least one rank, e.g. 0-3");
  }
  absl::flat_hash_set<int> seen;
  for (int rank : ranks) {
    if (rank < 0 || rank > kMaxRank) {
      return absl::InvalidArgumentError(
          absl::StrCat("--ranks: ", rank, " is no rank; allowed: 0 to ", kMaxRank));
    }
    if (!seen.insert(rank).second) {
      return absl::InvalidArgumentError(absl::StrCat("--ranks=", ShortRanks(ranks), ": rank ", rank,
                                                     " is given twice; allowed: each rank once"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

int Layout::IndexOf(int rank) const {
  const auto it = std::find(ranks.begin(), ranks.end(), rank);
  return it == ranks.end() ? -1 : static_cast<int>(it - ranks.begin());
}

std::string Layout::ToString() const {
  std::string text = absl::StrCat(size() == 1 ? "rank " : "ranks ", FormatRankList(ranks));
  if (placement == Placement::kReplicate) return absl::StrCat(text, ", replicated");
  absl::StrAppend(&text, ", dp ", dp);
  if (tp != 1) absl::StrAppend(&text, ", tp ", tp);
  if (ep != 1) absl::StrAppend(&text, ", ep ", ep);
  return text;
}

bool operator==(const Layout& a, const Layout& b) {
  return a.ranks == b.ranks && a.dp == b.dp && a.tp == b.tp && a.ep == b.ep &&
         a.placement == b.placement;
}

absl::Status CompleteLayout(Layout* layout) {
  if (absl::Status status = CheckRanks(layout->ranks); !status.ok()) return status;
  const int64_t count = layout->size();
  const struct {
    const char* flag;
    int value;
  } axes[] = {{"--dp", layout->dp}, {"--tp", layout->tp}, {"--ep", layout->ep}};
  for (const auto& axis : axes) {
    if (axis.value < 0 || axis.value > count) {
      return absl::InvalidArgumentError(absl::StrCat(
          axis.flag, "=", axis.value, " does not fit --ranks=", ShortRanks(layout->ranks),
          "; allowed: dp * tp * ep = ", count, ", the number of ranks"));
    }
  }
  const int64_t tp = std::max(layout->tp, 1);
  const int64_t ep = std::max(layout->ep, 1);
  const int64_t dp = layout->dp > 0 ? layout->dp : std::max<int64_t>(count / (tp * ep), 1);
  if (dp * tp * ep != count) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--dp=", dp, " --tp=", tp, " --ep=", ep, " do not cover --ranks=",
        ShortRanks(layout->ranks), "; allowed: dp * tp * ep = ", count, ", the number of ranks"));
  }
  if (tp > 1) {
    return absl::UnimplementedError(absl::StrCat("not available in this version: --tp=", tp,
                                                 " (tensor parallelism); allowed: --tp=1"));
  }
  if (ep > 1) {
    return absl::UnimplementedError(absl::StrCat("not available in this version: --ep=", ep,
                                                 " (expert parallelism); allowed: --ep=1"));
  }
  layout->dp = static_cast<int>(dp);
  layout->tp = static_cast<int>(tp);
  layout->ep = static_cast<int>(ep);
  return absl::OkStatus();
}

std::vector<int> UnionOfRanks(const std::vector<int>& a, const std::vector<int>& b) {
  std::vector<int> result = a;
  const absl::flat_hash_set<int> known(a.begin(), a.end());
  for (int rank : b) {
    if (!known.contains(rank)) result.push_back(rank);
  }
  return result;
}

}  // namespace regroup
