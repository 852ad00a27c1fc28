#include "daemon/node/worker_end.h"

#include <csignal>

#include "gtest/gtest.h"

namespace regroup {
namespace {

TEST(WorkerEnd, Describe_Signal_IsNamed) {
  EXPECT_EQ(Describe({2, 123, true, SIGKILL, ""}), "rank 2 (pid 123) was killed by SIGKILL");
  EXPECT_EQ(Describe({0, 7, true, SIGSEGV, ""}), "rank 0 (pid 7) was killed by SIGSEGV");
}

TEST(WorkerEnd, Describe_ExitStatus_IsKept) {
  EXPECT_EQ(Describe({2, 123, false, 3, ""}), "rank 2 (pid 123) exited with status 3");
}

TEST(WorkerEnd, Describe_KilledByDaemon_SaysWhy) {
  EXPECT_EQ(Describe({2, 123, true, SIGKILL, "did not answer for 10s"}),
            "rank 2 (pid 123) did not answer for 10s and was killed by SIGKILL");
}

TEST(WorkerEnd, DescribeWithTail_KeepsTheLastLinesOnOneLine) {
  const std::string text = DescribeWithTail({1, 5, false, 3, ""}, {"a", "b", "c", "d"});
  EXPECT_EQ(text, "rank 1 (pid 5) exited with status 3; it wrote last: b | c | d");
  EXPECT_LT(DescribeWithTail({1, 5, false, 3, ""}, {std::string(5000, 'x')}).size(), 500u);
  EXPECT_EQ(DescribeWithTail({1, 5, false, 3, ""}, {}), "rank 1 (pid 5) exited with status 3");
}

}  // namespace
}  // namespace regroup
