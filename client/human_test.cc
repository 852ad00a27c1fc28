#include "client/human.h"

#include <cmath>
#include <limits>

#include "gtest/gtest.h"

namespace regroup {
namespace {

TEST(Human, Bytes_HaveThreeOrFourDigits) {
  EXPECT_EQ(HumanBytes(0), "0 B");
  EXPECT_EQ(HumanBytes(999), "999 B");
  EXPECT_EQ(HumanBytes(1000), "1.0 kB");
  EXPECT_EQ(HumanBytes(999949), "999.9 kB");
  EXPECT_EQ(HumanBytes(999950), "1.0 MB");
  EXPECT_EQ(HumanBytes(538090000), "538.1 MB");
  EXPECT_EQ(HumanBytes(std::numeric_limits<int64_t>::max()), "9.2 EB");
  EXPECT_EQ(HumanBytes(-1500), "-1.5 kB");
}

TEST(Human, Count_HasNoUnit) {
  EXPECT_EQ(HumanCount(153), "153");
  EXPECT_EQ(HumanCount(134515008), "134.5 M");
}

TEST(Human, Seconds_GrowIntoMinutesAndHours) {
  EXPECT_EQ(HumanSeconds(0.041), "0.04 s");
  EXPECT_EQ(HumanSeconds(3.14), "3.1 s");
  EXPECT_EQ(HumanSeconds(59.97), "1 min 00 s");
  EXPECT_EQ(HumanSeconds(245), "4 min 05 s");
  EXPECT_EQ(HumanSeconds(7380), "2 h 03 min");
  EXPECT_EQ(HumanSeconds(-1), "?");
  EXPECT_EQ(HumanSeconds(std::nan("")), "?");
}

TEST(Human, Bar_IsClamped) {
  EXPECT_EQ(Bar(0.5, 4), "██░░");
  EXPECT_EQ(Bar(7, 2), "██");
  EXPECT_EQ(Bar(-1, 2), "░░");
  EXPECT_EQ(Bar(std::nan(""), 2), "░░");
}

TEST(Human, Plural_OfOneHasNoS) {
  EXPECT_EQ(Plural(1, "rank"), "1 rank");
  EXPECT_EQ(Plural(0, "rank"), "0 ranks");
}

TEST(Human, Significant_NotFinite_IsADash) {
  EXPECT_EQ(Significant(1e-5, 6), "1e-05");
  EXPECT_EQ(Significant(std::nan(""), 6), "-");
}

}  // namespace
}  // namespace regroup
