#include "engine/layout/rank_list.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "absl/strings/str_cat.h"

namespace regroup {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(RankListTest, Parse_Examples_KeepsTheOrderGiven) {
  EXPECT_THAT(*ParseRankList("0"), ElementsAre(0));
  EXPECT_THAT(*ParseRankList("0-3"), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(*ParseRankList("0,2"), ElementsAre(0, 2));
  EXPECT_THAT(*ParseRankList("2,0-1"), ElementsAre(2, 0, 1));
  EXPECT_THAT(*ParseRankList("5-5"), ElementsAre(5));
  EXPECT_THAT(*ParseRankList("007"), ElementsAre(7));
}

TEST(RankListTest, Format_Examples_UsesRanges) {
  EXPECT_EQ(FormatRankList({}), "");
  EXPECT_EQ(FormatRankList({0, 1, 2, 5}), "0-2,5");
  EXPECT_EQ(FormatRankList({2, 0, 1}), "2,0-1");
  EXPECT_EQ(FormatRankList({3, 2, 1}), "3,2,1");
}

TEST(RankListTest, RoundTrip_RandomLists_IsTheIdentity) {
  std::mt19937 random(1);
  for (int round = 0; round < 500; ++round) {
    std::vector<int> ranks(std::uniform_int_distribution<int>(1, 60)(random));
    std::iota(ranks.begin(), ranks.end(), std::uniform_int_distribution<int>(0, 900)(random));
    for (int swaps = round % 7; swaps > 0; --swaps) {
      std::uniform_int_distribution<size_t> at(0, ranks.size() - 1);
      std::swap(ranks[at(random)], ranks[at(random)]);
    }
    const auto parsed = ParseRankList(FormatRankList(ranks));
    ASSERT_TRUE(parsed.ok()) << parsed.status();
    EXPECT_EQ(*parsed, ranks);
  }
}

struct BadList {
  std::string text;
  std::string item;  // that the message names
  std::string what;
};

class BadRankListTest : public ::testing::TestWithParam<BadList> {};

TEST_P(BadRankListTest, Parse_BadList_NamesTheItemAndWhatIsAllowed) {
  const BadList& bad = GetParam();
  const auto parsed = ParseRankList(bad.text);
  ASSERT_FALSE(parsed.ok());
  EXPECT_EQ(parsed.status().code(), absl::StatusCode::kInvalidArgument);
  const std::string message(parsed.status().message());
  EXPECT_THAT(message, HasSubstr(absl::StrCat("item \"", bad.item, "\" ", bad.what)));
  EXPECT_THAT(message, HasSubstr("allowed: ranks 0 to 99999"));
}

INSTANTIATE_TEST_SUITE_P(
    Lists, BadRankListTest,
    ::testing::Values(BadList{"", "", "is empty"}, BadList{"0,,1", "", "is empty"},
                      BadList{"0,", "", "is empty"}, BadList{",0", "", "is empty"},
                      BadList{"-1", "-1", "lacks a number"},
                      BadList{"0,1-", "1-", "lacks a number"},
                      BadList{"+1", "+1", "is not made of digits"},
                      BadList{"1--2", "1--2", "is not made of digits"},
                      BadList{"0 ,1", "0 ", "is not made of digits"},
                      BadList{"0,x3", "x3", "is not made of digits"},
                      BadList{"0x1", "0x1", "is not made of digits"},
                      BadList{"1.5", "1.5", "is not made of digits"},
                      BadList{std::string("0,1\0", 4), "1\\x00", "is not made of digits"},
                      BadList{"100000", "100000", "is above the largest rank"},
                      BadList{"0-4294967296", "0-4294967296", "is above the largest rank"},
                      BadList{"3-1", "3-1", "is a reversed range"},
                      BadList{"0-2,1", "1", "gives rank 1 a second time"},
                      BadList{"7,7", "7", "gives rank 7 a second time"}));

TEST(RankListTest, Parse_HugeText_IsRefusedWithAShortMessage) {
  const auto parsed = ParseRankList(std::string(1 << 20, '9'));
  ASSERT_FALSE(parsed.ok());
  EXPECT_LT(parsed.status().message().size(), 400u);
}

TEST(RankListTest, Parse_LargestRange_IsAccepted) {
  const auto parsed = ParseRankList(absl::StrCat("0-", kMaxRank));
  ASSERT_TRUE(parsed.ok());
  EXPECT_EQ(parsed->size(), static_cast<size_t>(kMaxRank) + 1);
}

TEST(RankListTest, Parse_RandomBytes_ParsesOrRefusesButNeverMisreads) {
  std::mt19937 random(2);
  const std::string alphabet = "0123459,,--- +x";
  for (int round = 0; round < 20000; ++round) {
    std::string text(std::uniform_int_distribution<int>(0, 8)(random), ' ');
    for (char& c : text) {
      c = alphabet[std::uniform_int_distribution<size_t>(0, alphabet.size() - 1)(random)];
    }
    const auto parsed = ParseRankList(text);
    if (!parsed.ok()) continue;
    const auto again = ParseRankList(FormatRankList(*parsed));
    ASSERT_TRUE(again.ok()) << text;
    EXPECT_EQ(*again, *parsed) << text;
  }
}

}  // namespace
}  // namespace regroup
