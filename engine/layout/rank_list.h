// Rank lists as people write them: "0", "0-3", "0,2", "2,0-1".
#ifndef ENGINE_LAYOUT_RANK_LIST_H_
#define ENGINE_LAYOUT_RANK_LIST_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace regroup {

// The largest rank number that is accepted, and so a bound of what a list can make us allocate.
inline constexpr int kMaxRank = 99999;

// Parses `text`, keeping the order given. Never reads past the text; allocates at most kMaxRank + 1
// entries. Errors: INVALID_ARGUMENT for an empty list or item, a sign, a non-digit, a rank above
// kMaxRank, a reversed range or a duplicate; the message names the item and what is allowed.
absl::StatusOr<std::vector<int>> ParseRankList(absl::string_view text);

// The shortest list that parses to `ranks`: {0, 1, 2, 5} -> "0-2,5". "" for none.
std::string FormatRankList(absl::Span<const int> ranks);

}  // namespace regroup

#endif  // ENGINE_LAYOUT_RANK_LIST_H_
