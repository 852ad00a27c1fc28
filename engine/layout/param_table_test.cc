#include "engine/layout/param_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace regroup {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

ParamTable TwoLayers(DType dtype = DType::kFp32) {
  ParamTable table(dtype);
  table.AddUnit("layers.0");
  table.AddParameter("layers.0.weight", {16, 8});
  table.AddParameter("layers.0.bias", {16});
  table.AddUnit("layers.1", "edp");
  table.AddParameter("layers.1.weight", {4, 16});
  return table;
}

TEST(ParamTableTest, Add_NumbersFromZeroAndPacksUnits) {
  const ParamTable table = TwoLayers();
  ASSERT_EQ(table.parameters().size(), 3u);
  ASSERT_EQ(table.units().size(), 2u);
  EXPECT_EQ(table.parameter(1).id, 1);
  EXPECT_EQ(table.parameter(1).offset, 128);
  EXPECT_EQ(table.parameter(1).numel, 16);
  EXPECT_EQ(table.parameter(2).unit, 1);
  EXPECT_EQ(table.parameter(2).offset, 0);
  EXPECT_THAT(table.unit(0).parameters, ElementsAre(0, 1));
  EXPECT_EQ(table.unit(0).numel, 144);
  EXPECT_EQ(table.unit(0).group, kDataParallelGroup);
  EXPECT_EQ(table.total_numel(), 208);
}

TEST(ParamTableTest, Add_ScalarParameter_HasOneElement) {
  ParamTable table;
  table.AddUnit("u");
  table.AddParameter("scale", {});
  EXPECT_EQ(table.parameter(0).numel, 1);
}

TEST(ParamTableTest, Find_KnownAndUnknownNames) {
  const ParamTable table = TwoLayers();
  ASSERT_NE(table.Find("layers.1.weight"), nullptr);
  EXPECT_EQ(table.Find("layers.1.weight")->id, 2);
  EXPECT_EQ(table.Find("layers.1"), nullptr);
}

TEST(ParamTableTest, Describe_SaysEverythingThatRanksMustAgreeOn) {
  EXPECT_THAT(TwoLayers(DType::kBf16).Describe(),
              ElementsAre("0 layers.0.weight [16, 8] bf16 unit 0 group dp",
                          "1 layers.0.bias [16] bf16 unit 0 group dp",
                          "2 layers.1.weight [4, 16] bf16 unit 1 group edp"));
}

TEST(ParamTableTest, Tables_BuiltAgain_AreEqual) {
  const std::vector<std::string> first = TwoLayers().Describe();
  ParamTable another;
  another.AddUnit("other");
  another.AddParameter("other.weight", {3});
  EXPECT_EQ(TwoLayers().Describe(), first);
}

TEST(ParamTableDeathTest, AddParameter_NameUsedTwice_Aborts) {
  ParamTable table = TwoLayers();
  EXPECT_DEATH(table.AddParameter("layers.0.bias", {1}), "a name is used twice: layers.0.bias");
}

TEST(ParamTableDeathTest, AddParameter_NoUnit_Aborts) {
  ParamTable table;
  EXPECT_DEATH(table.AddParameter("w", {1}), "a parameter needs a unit: w");
}

TEST(DTypeTest, Names_RoundTrip) {
  for (DType dtype : {DType::kFp32, DType::kBf16, DType::kFp16}) {
    EXPECT_EQ(*ParseDType(DTypeName(dtype)), dtype);
  }
  EXPECT_EQ(DTypeBytes(DType::kFp32), 4);
  EXPECT_EQ(DTypeBytes(DType::kBf16), 2);
  EXPECT_EQ(DTypeBytes(DType::kFp16), 2);
}

TEST(DTypeTest, Parse_UnknownName_NamesValueAndWhatIsAllowed) {
  const auto parsed = ParseDType("fp64");
  EXPECT_EQ(parsed.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(parsed.status().message()), HasSubstr("\"fp64\""));
  EXPECT_THAT(std::string(parsed.status().message()), HasSubstr("fp32, bf16, fp16"));
}

}  // namespace
}  // namespace regroup
