#include "engine/layout/plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"

namespace regroup {
namespace {

Layout MakeLayout(std::vector<int> ranks, Placement placement = Placement::kShard) {
  Layout layout;
  layout.dp = static_cast<int>(ranks.size());
  layout.ranks = std::move(ranks);
  layout.placement = placement;
  return layout;
}

ParamTable MakeTable(const std::vector<int64_t>& unit_sizes) {
  ParamTable table;
  for (size_t unit = 0; unit < unit_sizes.size(); ++unit) {
    table.AddUnit(absl::StrCat("units.", unit));
    table.AddParameter(absl::StrCat("units.", unit, ".weight"), {unit_sizes[unit]});
  }
  return table;
}

// Random subsets of 12 ranks in random order, random unit sizes (empty ones too), random
// placements.
class Case {
 public:
  explicit Case(std::mt19937* random)
      : table(MakeTable(Sizes(random))),
        source(MakeLayout(Ranks(random),
                          Any(random, 4) == 0 ? Placement::kReplicate : Placement::kShard)),
        destination(MakeLayout(Ranks(random),
                               Any(random, 3) == 0 ? Placement::kReplicate : Placement::kShard)),
        max_copy(Any(random, 2) == 0 ? 1 + Any(random, 40) : 1 << 20) {}

  ParamTable table;
  Layout source;
  Layout destination;
  int64_t max_copy;

 private:
  static int Any(std::mt19937* random, int below) {
    return std::uniform_int_distribution<int>(0, below - 1)(*random);
  }
  static std::vector<int64_t> Sizes(std::mt19937* random) {
    std::vector<int64_t> sizes(1 + Any(random, 5));
    for (int64_t& size : sizes) size = Any(random, 3) == 0 ? Any(random, 20) : Any(random, 900);
    return sizes;
  }
  static std::vector<int> Ranks(std::mt19937* random) {
    std::vector<int> ranks(12);
    std::iota(ranks.begin(), ranks.end(), 0);
    std::shuffle(ranks.begin(), ranks.end(), *random);
    ranks.resize(1 + Any(random, 12));
    return ranks;
  }
};

class PlanPropertyTest : public ::testing::TestWithParam<int> {
 protected:
  void ForEachCase(const std::function<void(const Case&, const MovePlan&)>& body) {
    std::mt19937 random(GetParam());
    for (int round = 0; round < 100; ++round) {
      const Case c(&random);
      SCOPED_TRACE(absl::StrCat("round ", round, ": ", c.source.ToString(), " -> ",
                                c.destination.ToString()));
      body(c, PlanMove(c.table, c.source, c.destination, c.max_copy));
      if (::testing::Test::HasFatalFailure()) return;
    }
  }
};

INSTANTIATE_TEST_SUITE_P(Seeds, PlanPropertyTest, ::testing::Range(0, 10));

TEST_P(PlanPropertyTest, Plan_EveryDestinationElement_IsDeliveredExactlyOnce) {
  ForEachCase([](const Case& c, const MovePlan& plan) {
    std::map<std::pair<int, int>, std::vector<int>> delivered;  // (unit, to) -> times, by element
    for (const Copy& copy : plan.copies) {
      ASSERT_GT(copy.interval.size(), 0);
      ASSERT_LE(copy.interval.size(), c.max_copy);
      const int64_t numel = c.table.unit(copy.unit).numel;
      ASSERT_LE(copy.interval.end, numel);
      const Interval held = HeldInterval(c.source, numel, copy.from);
      ASSERT_GE(copy.interval.begin, held.begin);
      ASSERT_LE(copy.interval.end, held.end);
      std::vector<int>& times = delivered[{copy.unit, copy.to}];
      times.resize(numel);
      for (int64_t i = copy.interval.begin; i < copy.interval.end; ++i) ++times[i];
    }
    for (const Unit& unit : c.table.units()) {
      for (int rank = 0; rank < 12; ++rank) {
        const Interval wanted = HeldInterval(c.destination, unit.numel, rank);
        std::vector<int> expected(unit.numel, 0);
        std::fill(expected.begin() + wanted.begin, expected.begin() + wanted.end, 1);
        std::vector<int>& times = delivered[{unit.id, rank}];
        times.resize(unit.numel);
        ASSERT_EQ(times, expected) << "unit " << unit.id << " on rank " << rank;
      }
    }
  });
}

// What a rank lacks has to come from elsewhere, what it has must not: both at once make the plan
// minimal.
TEST_P(PlanPropertyTest, Plan_NothingResidentMoves_AndTheTotalIsMinimal) {
  ForEachCase([](const Case& c, const MovePlan& plan) {
    int64_t least = 0;
    int64_t resident = 0;
    for (const Unit& unit : c.table.units()) {
      for (int rank : c.destination.ranks) {
        const Interval wanted = HeldInterval(c.destination, unit.numel, rank);
        const Interval held = HeldInterval(c.source, unit.numel, rank);
        const Interval both{std::max(wanted.begin, held.begin), std::min(wanted.end, held.end)};
        least += wanted.size() - both.size();
        resident += both.size();
      }
    }
    int64_t moved = 0;
    for (const Copy& copy : plan.copies) {
      if (copy.from != copy.to) moved += copy.interval.size();
    }
    ASSERT_EQ(moved, least);
    ASSERT_EQ(plan.elements_moved, least);
    ASSERT_EQ(plan.elements_kept, resident);
  });
}

TEST_P(PlanPropertyTest, Plan_Order_IsByUnitDestinationBegin) {
  ForEachCase([](const Case& c, const MovePlan& plan) {
    const auto key = [](const Copy& copy) {
      return std::make_tuple(copy.unit, copy.to, copy.interval.begin);
    };
    for (size_t i = 1; i < plan.copies.size(); ++i) {
      ASSERT_LT(key(plan.copies[i - 1]), key(plan.copies[i]));
    }
    const MovePlan again = PlanMove(c.table, c.source, c.destination, c.max_copy);
    ASSERT_EQ(again.copies, plan.copies);
    ASSERT_EQ(again.Digest(), plan.Digest());
  });
}

TEST_P(PlanPropertyTest, Plan_ThereAndBack_MovesTheSameElements) {
  ForEachCase([](const Case& c, const MovePlan& plan) {
    if (c.source.placement != Placement::kShard || c.destination.placement != Placement::kShard) {
      return;
    }
    const MovePlan back = PlanMove(c.table, c.destination, c.source, c.max_copy);
    ASSERT_EQ(back.elements_moved, plan.elements_moved);
    ASSERT_EQ(back.elements_kept, plan.elements_kept);
  });
}

TEST(PlanTest, Plan_SameLayout_MovesNothing) {
  const ParamTable table = MakeTable({100, 33});
  const MovePlan plan = PlanMove(table, MakeLayout({1, 2}), MakeLayout({1, 2}), 1000);
  EXPECT_EQ(plan.elements_moved, 0);
  EXPECT_EQ(plan.elements_kept, 133);
}

TEST(PlanTest, Digest_AnyFieldChanged_Differs) {
  const Copy copy{1, 2, 3, {4, 5}};
  std::set<uint64_t> digests;
  for (const Copy& other : {copy, Copy{0, 2, 3, {4, 5}}, Copy{1, 0, 3, {4, 5}},
                            Copy{1, 2, 0, {4, 5}}, Copy{1, 2, 3, {0, 5}}, Copy{1, 2, 3, {4, 6}}}) {
    MovePlan plan;
    plan.copies = {other};
    digests.insert(plan.Digest());
  }
  digests.insert(MovePlan{}.Digest());
  EXPECT_EQ(digests.size(), 7u);
}

TEST(PlanTest, Plan_SeveralHolders_SharesTheLoadEvenly) {
  const ParamTable table = MakeTable(std::vector<int64_t>(30, 1000));
  const MovePlan plan = PlanMove(table, MakeLayout({0, 1, 2}, Placement::kReplicate),
                                 MakeLayout({3, 4}, Placement::kReplicate), 100);
  std::map<int, int64_t> sent;
  for (const Copy& copy : plan.copies) sent[copy.from] += copy.interval.size();
  EXPECT_EQ(sent, (std::map<int, int64_t>{{0, 20000}, {1, 20000}, {2, 20000}}));
}

// A rank's part overlaps with what few others hold: pieces grow with the ranks, not with their
// pairs.
TEST(PlanTest, Plan_ManyRanksAndUnits_IsLinearInItsCopies) {
  const ParamTable table = MakeTable(std::vector<int64_t>(300, 12'000'000));
  std::vector<int> old_ranks(256);
  std::iota(old_ranks.begin(), old_ranks.end(), 0);
  std::vector<int> new_ranks(250);
  std::iota(new_ranks.begin(), new_ranks.end(), 40);
  std::mt19937 random(5);
  std::shuffle(new_ranks.begin(), new_ranks.end(), random);
  const MovePlan plan =
      PlanMove(table, MakeLayout(old_ranks), MakeLayout(new_ranks), int64_t{1} << 24);
  EXPECT_EQ(plan.elements_moved + plan.elements_kept, 300 * int64_t{12'000'000});
  EXPECT_GE(plan.copies.size(), 300u * 256);
  EXPECT_LE(plan.copies.size(), 300u * (256 + 250));
  EXPECT_NE(plan.Digest(), 0u);
}

}  // namespace
}  // namespace regroup
