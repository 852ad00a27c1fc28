#include "daemon/control/task_group.h"

#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace regroup {
namespace {

using ::testing::HasSubstr;

TEST(TaskGroup, Start_TooMany_IsRefusedUntilOneEnds) {
  absl::Notification release;
  TaskGroup group;
  for (int i = 0; i < TaskGroup::kMost; ++i) {
    ASSERT_TRUE(group.Start([&release] { release.WaitForNotification(); }).ok()) << i;
  }
  const absl::Status status = group.Start([] {});
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(status.message(), HasSubstr("512 at a time"));
  EXPECT_FALSE(group.Wait(absl::Now()));
  release.Notify();
  EXPECT_TRUE(group.Wait(absl::InfiniteFuture()));
  EXPECT_TRUE(group.Start([] {}).ok());
}

TEST(TaskGroup, Start_Closed_SaysThatTheDaemonStops) {
  TaskGroup group;
  group.Close();
  EXPECT_THAT(group.Start([] {}).message(), HasSubstr("stopping"));
}

}  // namespace
}  // namespace regroup
