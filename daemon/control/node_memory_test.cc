#include "daemon/control/node_memory.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace regroup {
namespace {

using ::testing::HasSubstr;

TEST(NodeMemory, Check_SumBeyondTheLeastThatIsFree_IsRefusedWithBothNumbers) {
  NodeMemory memory;
  EXPECT_TRUE(memory.Check().ok());
  memory.Add("", 600, 1500);
  memory.Add("", 600, 1200);
  memory.Add("", 0, 0);  // takes no part
  EXPECT_TRUE(memory.Check().ok());
  memory.Add("", 1, 1300);
  const absl::Status status = memory.Check();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(status.message(), HasSubstr("3 ranks need 1.2 kB"));
  EXPECT_THAT(status.message(), HasSubstr("at most the 1.2 kB"));
}

TEST(NodeMemory, Check_EachNodeByItself) {
  NodeMemory memory;
  memory.Add("", 600, 1000);
  memory.Add("b", 600, 1000);
  EXPECT_TRUE(memory.Check().ok());
  memory.Add("b", 600, 1000);
  EXPECT_THAT(memory.Check().message(), HasSubstr("2 ranks on node b need 1.2 kB"));
}

TEST(NodeMemory, Add_HugeNumbers_DoNotOverflow) {
  NodeMemory memory;
  memory.Add("", INT64_MAX, 5000);
  memory.Add("", INT64_MAX, 5000);
  EXPECT_FALSE(memory.Check().ok());
}

}  // namespace
}  // namespace regroup
