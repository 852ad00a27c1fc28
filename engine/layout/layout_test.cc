#include "engine/layout/layout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace regroup {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

Layout Ranks(std::vector<int> ranks, int dp = 0, int tp = 0, int ep = 0) {
  Layout layout;
  layout.ranks = std::move(ranks);
  layout.dp = dp;
  layout.tp = tp;
  layout.ep = ep;
  return layout;
}

TEST(LayoutTest, Complete_NoAxisGiven_DerivesThem) {
  Layout layout = Ranks({2, 0, 1});
  ASSERT_TRUE(CompleteLayout(&layout).ok());
  EXPECT_EQ(layout, Ranks({2, 0, 1}, 3, 1, 1));
}

TEST(LayoutTest, Complete_FullMeshGiven_IsAccepted) {
  Layout layout = Ranks({1, 2}, 2, 1, 1);
  EXPECT_TRUE(CompleteLayout(&layout).ok());
}

struct BadLayout {
  Layout layout;
  absl::StatusCode code;
  std::vector<std::string> words;  // each must be in the message
};

class BadLayoutTest : public ::testing::TestWithParam<BadLayout> {};

TEST_P(BadLayoutTest, Complete_BadLayout_NamesFlagAndValueAndChangesNothing) {
  Layout layout = GetParam().layout;
  const absl::Status status = CompleteLayout(&layout);
  EXPECT_EQ(status.code(), GetParam().code) << status;
  for (const std::string& word : GetParam().words) {
    EXPECT_THAT(std::string(status.message()), HasSubstr(word));
  }
  EXPECT_THAT(std::string(status.message()), HasSubstr("allowed"));
  EXPECT_EQ(layout, GetParam().layout);
}

constexpr absl::StatusCode kInvalid = absl::StatusCode::kInvalidArgument;
constexpr absl::StatusCode kUnimplemented = absl::StatusCode::kUnimplemented;

INSTANTIATE_TEST_SUITE_P(
    Layouts, BadLayoutTest,
    ::testing::Values(
        BadLayout{Ranks({}), kInvalid, {"--ranks", "no rank"}},
        BadLayout{Ranks({0, -3}), kInvalid, {"--ranks", "-3"}},
        BadLayout{Ranks({100000}), kInvalid, {"--ranks", "100000"}},
        BadLayout{Ranks({0, 1, 0}), kInvalid, {"--ranks=0-1,0", "rank 0", "twice"}},
        BadLayout{Ranks({0, 1}, 3), kInvalid, {"--dp=3", "--ranks=0-1", "dp * tp * ep = 2"}},
        BadLayout{Ranks({0, 1}, 1), kInvalid, {"--dp=1", "dp * tp * ep = 2"}},
        BadLayout{Ranks({0, 1}, -1), kInvalid, {"--dp=-1"}},
        BadLayout{Ranks({0, 1}, 0, 2147483647), kInvalid, {"--tp=2147483647"}},
        BadLayout{Ranks({0, 1, 2}, 0, 2), kInvalid, {"--tp=2", "--ranks=0-2"}},
        BadLayout{Ranks({0, 1}, 0, 0, -2), kInvalid, {"--ep=-2"}},
        BadLayout{Ranks({0, 1}, 1, 2), kUnimplemented, {"not available in this version: --tp=2"}},
        BadLayout{
            Ranks({0, 1}, 0, 0, 2), kUnimplemented, {"not available in this version: --ep=2"}}));

TEST(LayoutTest, IndexOf_IsThePositionInTheGroup) {
  const Layout layout = Ranks({2, 0, 1});
  EXPECT_EQ(layout.IndexOf(2), 0);
  EXPECT_EQ(layout.IndexOf(1), 2);
  EXPECT_EQ(layout.IndexOf(3), -1);
  EXPECT_EQ(layout.lead(), 2);
  EXPECT_TRUE(layout.Contains(0));
  EXPECT_FALSE(layout.Contains(7));
}

TEST(LayoutTest, ToString_NamesRanksAndAxes) {
  EXPECT_EQ(Ranks({1, 2}, 2, 1, 1).ToString(), "ranks 1-2, dp 2");
  EXPECT_EQ(Ranks({3}, 1, 1, 1).ToString(), "rank 3, dp 1");
  Layout replicated = Ranks({3, 4}, 2, 1, 1);
  replicated.placement = Placement::kReplicate;
  EXPECT_EQ(replicated.ToString(), "ranks 3-4, replicated");
}

TEST(LayoutTest, UnionOfRanks_KeepsBothOrders) {
  EXPECT_THAT(UnionOfRanks({2, 0}, {3, 0, 1}), ElementsAre(2, 0, 3, 1));
  EXPECT_THAT(UnionOfRanks({}, {1, 0}), ElementsAre(1, 0));
  EXPECT_THAT(UnionOfRanks({1, 0}, {}), ElementsAre(1, 0));
}

}  // namespace
}  // namespace regroup
