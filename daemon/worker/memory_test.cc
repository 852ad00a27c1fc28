#include "daemon/worker/memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "absl/time/clock.h"
#include "daemon/worker/allocator.h"
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
TEST(MemoryTest, AwaitAtLeast_EndsWhenThereIsEnough) {
  int64_t there = 7;
  EXPECT_EQ(AwaitAtLeast(10, absl::InfiniteDuration(), [&there] { return there++; }), 10);
  EXPECT_EQ(AwaitAtLeast(10, absl::InfiniteDuration(), [] { return int64_t{-1}; }), -1)
      << "it cannot be told";
}

TEST(MemoryTest, AwaitAtLeast_NeverEnough_EndsWithItsPatience) {
  int asked = 0;
  const auto probe = [&asked] { return int64_t{9} + 0 * ++asked; };
  EXPECT_EQ(AwaitAtLeast(10, absl::Milliseconds(60), probe), 9);
  EXPECT_GE(asked, 2);
  EXPECT_EQ(AwaitAtLeast(10, absl::ZeroDuration(), probe), 9);
}

TEST(MemoryTest, AwaitMemoryBytes_MoreThanTheMachineHas_IsSaidAtOnce) {
  const absl::Time start = absl::Now();
  EXPECT_LT(AwaitMemoryBytes(int64_t{1} << 60), int64_t{1} << 60);
  EXPECT_LT(absl::Now() - start, kFreedMemoryHeld);
}

TEST(MemoryTest, StateBytes_Sharded_CountsPaddingAndMoments) {
  EXPECT_EQ(StateBytes(TwoUnits(DType::kFp32), Two(), 2), 80 * 12);
  EXPECT_EQ(StateBytes(TwoUnits(DType::kBf16), Two(), 0), 80 * 2);
}

// fp32 with AdamW: 16 bytes a parameter with its reduced gradient; bf16: 18, of which 4 are the
// master copy.
TEST(MemoryTest, TrainerTensors_MasterCopy_IsCounted) {
  OptimizerSpec optimizer;
  EXPECT_EQ(TrainerTensors(TwoUnits(DType::kFp32), optimizer), 2);
  EXPECT_EQ(TrainerTensors(TwoUnits(DType::kBf16), optimizer), 3);
  optimizer.kind = OptimizerKind::kSgd;
  EXPECT_EQ(TrainerTensors(TwoUnits(DType::kBf16), optimizer), 1);
  EXPECT_EQ(StateBytes(TwoUnits(DType::kBf16), Two(), 3), 80 * 14);
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

TEST(MemoryTest, StepBytes_SeveralMicroBatches_CountTwoBuffersOfTheLargestShard) {
  for (const DType dtype : {DType::kFp32, DType::kBf16}) {
    EXPECT_EQ(StepBytes(TwoUnits(dtype), Two(), 1000, 1), 1000);
    EXPECT_EQ(StepBytes(TwoUnits(dtype), Two(), 1000, 2), 1000 + 2 * 64 * 4);
    EXPECT_EQ(StepBytes(TwoUnits(dtype), Two(), 1000, 8), 1000 + 2 * 64 * 4);
  }
}

TEST(MemoryTest, Admit_TooLittle_GivesBothNumbers) {
  EXPECT_TRUE(AdmitMemory("engine a on rank 1", 10, 10).ok());
  EXPECT_TRUE(AdmitMemory("engine a on rank 1", 10, -1).ok());
  const absl::Status status = AdmitMemory("engine a on rank 1", 1230000000, 450000000);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(ReasonOf(status), "MEMORY");
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("engine a on rank 1 needs 1.2 GB of memory"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("450.0 MB are available"));
}

class ControlGroupTest : public ::testing::Test {
 protected:
  ControlGroupTest() {
    std::string path = ::testing::TempDir() + "/cgroup-XXXXXX";
    mount_ = mkdtemp(path.data());
  }
  ~ControlGroupTest() override { std::filesystem::remove_all(mount_); }

  void Write(const std::string& path, const std::string& content) const {
    const std::filesystem::path file = mount_ + "/" + path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << content;
  }

  std::string mount_;
};

TEST_F(ControlGroupTest, V2_TheTightestOfTheAncestorsCounts) {
  const std::string self = "0::/jobs/one\n";
  EXPECT_EQ(ControlGroupBytes(self, mount_), -1);
  Write("jobs/one/memory.max", "max\n");
  Write("jobs/one/memory.current", "100\n");
  EXPECT_EQ(ControlGroupBytes(self, mount_), -1);
  Write("jobs/memory.max", "1000\n");
  Write("jobs/memory.current", "700\n");
  Write("jobs/memory.stat", "anon 600\ninactive_file 50\n");
  EXPECT_EQ(ControlGroupBytes(self, mount_), 350);
  Write("memory.max", "500\n");
  Write("memory.current", "800\n");
  EXPECT_EQ(ControlGroupBytes(self, mount_), 0);
}

TEST_F(ControlGroupTest, V1_OnlyTheMemoryHierarchyCounts) {
  Write("memory/a/memory.limit_in_bytes", "1000");
  Write("memory/a/memory.usage_in_bytes", "400");
  Write("memory/a/memory.stat", "cache 1\ntotal_inactive_file 100\n");
  EXPECT_EQ(ControlGroupBytes("5:cpu:/b\n4:cpuset,memory:/a\n0::/\n", mount_), 700);
  EXPECT_EQ(ControlGroupBytes("5:cpu:/a\n", mount_), -1);
  EXPECT_EQ(ControlGroupBytes("", mount_), -1);
}

TEST(MemoryTest, OfThisMachine_CanBeRead) {
  EXPECT_GT(AvailableMemoryBytes(), 1 << 20);
  EXPECT_GT(ResidentBytes(), 1 << 20);
}

}  // namespace
}  // namespace regroup
