#include "engine/layout/shard.h"

#include <gtest/gtest.h>

#include <random>

namespace regroup {
namespace {

TEST(ShardTest, Size_Examples) {
  EXPECT_EQ(ShardSize(0, 4), 0);
  EXPECT_EQ(ShardSize(1, 4), 16);
  EXPECT_EQ(ShardSize(64, 4), 16);
  EXPECT_EQ(ShardSize(65, 4), 32);
  EXPECT_EQ(ShardSize(100, 1), 112);
}

TEST(ShardTest, Intervals_AnySize_TileTheUnit) {
  std::mt19937_64 random(3);
  for (int round = 0; round < 2000; ++round) {
    const int64_t numel =
        std::uniform_int_distribution<int64_t>(0, round % 2 == 0 ? 200 : int64_t{1} << 40)(random);
    const int members = std::uniform_int_distribution<int>(1, 70)(random);
    const int64_t size = ShardSize(numel, members);
    ASSERT_EQ(size % kShardAlignment, 0);
    ASSERT_GE(size * members, numel);
    ASSERT_LT(size * members, numel + int64_t{members} * (kShardAlignment + 1));
    int64_t next = 0;
    for (int index = 0; index < members; ++index) {
      const Interval interval = ShardInterval(numel, members, index);
      ASSERT_EQ(interval.begin, next);
      ASSERT_LE(interval.size(), size);
      ASSERT_TRUE(interval.size() == 0 || interval.begin == size * index);
      next = interval.end;
    }
    ASSERT_EQ(next, numel) << members << " members";
  }
}

TEST(ShardTest, Held_DependsOnPlacementAndPositionInTheGroup) {
  Layout layout;
  layout.ranks = {5, 3};
  layout.dp = 2;
  EXPECT_EQ(HeldInterval(layout, 40, 5), (Interval{0, 32}));
  EXPECT_EQ(HeldInterval(layout, 40, 3), (Interval{32, 40}));
  EXPECT_EQ(HeldInterval(layout, 40, 0).size(), 0);
  layout.placement = Placement::kReplicate;
  EXPECT_EQ(HeldInterval(layout, 40, 3), (Interval{0, 40}));
  EXPECT_EQ(HeldInterval(layout, 40, 0).size(), 0);
}

}  // namespace
}  // namespace regroup
