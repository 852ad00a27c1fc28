#include "daemon/worker/memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "engine/group/comm_status.h"

namespace regroup {
namespace {

using ::testing::HasSubstr;

ParamTable TwoUnits(DType dtype) {
  ParamTable table(dtype);
  table.AddUnit("a");
  table.AddParameter("a.weight", {100});
  table.AddUnit("b");
  table.AddParameter("b.weight", {10});
  return table;
}

Layout Two() {
  Layout layout;
  layout.ranks = {0, 1};
  layout.dp = 2;
  return layout;
}

// Shards of 64 and 16 elements.
TEST(MemoryTest, StateBytes_Sharded_CountsPaddingAndMoments) {
  EXPECT_EQ(StateBytes(TwoUnits(DType::kFp32), Two(), 2), 80 * 12);
  EXPECT_EQ(StateBytes(TwoUnits(DType::kBf16), Two(), 0), 80 * 2);
}

TEST(MemoryTest, StateBytes_Replicated_IsTheWholeModel) {
  Layout layout = Two();
  layout.placement = Placement::kReplicate;
  EXPECT_EQ(StateBytes(TwoUnits(DType::kFp32), layout, 0), 110 * 4);
}

TEST(MemoryTest, TrainerBufferBytes_GradientsAndBuffersOfTheLargestUnit) {
  EXPECT_EQ(TrainerBufferBytes(TwoUnits(DType::kFp32), Two()), 80 * 4 + 128 * (2 * 4 + 3 * 4));
  EXPECT_EQ(TrainerBufferBytes(TwoUnits(DType::kBf16), Two()), 80 * 4 + 128 * (2 * 2 + 3 * 4));
}

TEST(MemoryTest, Admit_TooLittle_GivesBothNumbers) {
  EXPECT_TRUE(AdmitMemory("engine a on rank 1", 10, 10).ok());
  EXPECT_TRUE(AdmitMemory("engine a on rank 1", 10, -1).ok());
  const absl::Status status = AdmitMemory("engine a on rank 1", 123, 45);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(ReasonOf(status), "MEMORY");
  EXPECT_THAT(std::string(status.message()), HasSubstr("engine a on rank 1 needs 123 bytes"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("45 are available"));
}

TEST(MemoryTest, OfThisMachine_CanBeRead) {
  EXPECT_GT(AvailableMemoryBytes(), 1 << 20);
  EXPECT_GT(ResidentBytes(), 1 << 20);
}

}  // namespace
}  // namespace regroup
