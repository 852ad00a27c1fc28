// How an engine lies on ranks. Plain C++: no torch, no gRPC.
#ifndef ENGINE_LAYOUT_LAYOUT_H_
#define ENGINE_LAYOUT_LAYOUT_H_

#include <string>
#include <vector>

#include "absl/status/status.h"

namespace regroup {

// What a rank of the data-parallel axis holds of each parameter.
enum class Placement {
  kShard,      // an equal interval of each unit's flat buffer (ZeRO-3)
  kReplicate,  // all of it (inference)
};

struct Layout {
  std::vector<int>
      ranks;   // global ranks; the order is the order in the group, the first is the lead
  int dp = 0;  // size of each mesh axis; dp * tp * ep == ranks.size()
  int tp = 1;
  int ep = 1;
  Placement placement = Placement::kShard;

  int size() const { return static_cast<int>(ranks.size()); }
  int lead() const { return ranks.front(); }

  // The position of global `rank` in the group, -1 for an outside rank.
  int IndexOf(int rank) const;
  bool Contains(int rank) const { return IndexOf(rank) >= 0; }

  // For people: "ranks 1-2, dp 2".
  std::string ToString() const;
};

bool operator==(const Layout& a, const Layout& b);

// Fills axes that are 0 (tp = ep = 1, dp = ranks / (tp * ep)) and checks the result.
// Errors: INVALID_ARGUMENT (no rank, a negative or duplicate rank, a mesh that does not cover the
// ranks exactly), UNIMPLEMENTED (tp or ep above 1, in this version). Each names the flag and the
// value seen.
absl::Status CompleteLayout(Layout* layout);

// The ranks of `a`, then those of `b` that are not in `a`, in their orders.
std::vector<int> UnionOfRanks(const std::vector<int>& a, const std::vector<int>& b);

}  // namespace regroup

#endif  // ENGINE_LAYOUT_LAYOUT_H_
