#include "engine/layout/shard.h"

#include <algorithm>

namespace regroup {

int64_t ShardSize(int64_t numel, int group_size) {
  const int64_t share = (numel + group_size - 1) / group_size;
  return (share + kShardAlignment - 1) / kShardAlignment * kShardAlignment;
}

Interval ShardInterval(int64_t numel, int group_size, int index) {
  const int64_t size = ShardSize(numel, group_size);
  const int64_t begin = std::min(numel, size * index);
  return {begin, std::min(numel, begin + size)};
}

Interval HeldInterval(const Layout& layout, int64_t numel, int rank) {
  const int index = layout.IndexOf(rank);
  if (index < 0) return {0, 0};
  if (layout.placement == Placement::kReplicate) return {0, numel};
  return ShardInterval(numel, layout.size(), index);
}

}  // namespace regroup
