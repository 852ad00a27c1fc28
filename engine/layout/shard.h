// Equal intervals of a unit's flat buffer.
#ifndef ENGINE_LAYOUT_SHARD_H_
#define ENGINE_LAYOUT_SHARD_H_

#include <cstdint>

#include "engine/layout/layout.h"

namespace regroup {

// Shards are whole multiples of this many elements (64 bytes of fp32), so that rows of vector code
// stay aligned.
inline constexpr int64_t kShardAlignment = 16;

// Elements [begin, end) of a unit's flat buffer.
struct Interval {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t size() const { return end > begin ? end - begin : 0; }
};

inline bool operator==(const Interval& a, const Interval& b) {
  return a.begin == b.begin && a.end == b.end;
}

// Elements that each of `group_size` members owns of a unit of `numel` elements, padding included:
// ceil(numel / group_size), rounded up to kShardAlignment.
int64_t ShardSize(int64_t numel, int group_size);

// The elements without padding that member `index` owns; empty (begin == end == numel) for members
// that only hold padding. The intervals of all members cover [0, numel) without overlap.
Interval ShardInterval(int64_t numel, int group_size, int index);

// What `rank` holds of a unit under `layout`: its shard, all of it (kReplicate), or nothing
// (outside).
Interval HeldInterval(const Layout& layout, int64_t numel, int rank);

}  // namespace regroup

#endif  // ENGINE_LAYOUT_SHARD_H_
