// From two layouts and a parameter table to the ordered copies that move state between them.
#ifndef ENGINE_LAYOUT_PLAN_H_
#define ENGINE_LAYOUT_PLAN_H_

#include <cstdint>
#include <vector>

#include "engine/layout/layout.h"
#include "engine/layout/param_table.h"
#include "engine/layout/shard.h"

namespace regroup {

// Elements `interval` of `unit` go from rank `from` to rank `to`. from == to: they stay on the rank
// (and are placed in the new buffer without any transfer).
struct Copy {
  int unit = 0;
  int from = 0;  // global ranks
  int to = 0;
  Interval interval;
};

bool operator==(const Copy& a, const Copy& b);

struct MovePlan {
  // Ordered by (unit, to, begin): the order in which every rank issues them.
  std::vector<Copy> copies;
  int64_t elements_moved = 0;  // between different ranks
  int64_t elements_kept = 0;   // from == to

  // 64-bit digest of the copies: ranks agree on it before anything moves.
  uint64_t Digest() const;
};

// Plans the move of every unit of `table` from `source` to `destination`. What a destination rank
// already holds under `source` never moves. Of several holders (kReplicate) the load is spread
// evenly and deterministically. No copy is longer than `max_copy_elements` (> 0). Pure; O(copies).
MovePlan PlanMove(const ParamTable& table, const Layout& source, const Layout& destination,
                  int64_t max_copy_elements);

}  // namespace regroup

#endif  // ENGINE_LAYOUT_PLAN_H_
