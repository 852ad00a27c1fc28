#include "daemon/worker/executor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>
#include <vector>

namespace regroup {
namespace {

TEST(ExecutorTest, Post_ManyTasks_RunInOrderOnOneThread) {
  std::vector<int> order;
  std::vector<std::thread::id> threads;
  {
    Executor executor(nullptr);
    for (int i = 0; i < 100; ++i) {
      executor.Post([&, i] {
        order.push_back(i);
        threads.push_back(std::this_thread::get_id());
      });
    }
  }  // runs what was posted
  ASSERT_EQ(order.size(), 100u);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(order[i], i);
  EXPECT_THAT(threads, ::testing::Each(threads[0]));
  EXPECT_NE(threads[0], std::this_thread::get_id());
}

TEST(ExecutorTest, PrepareThread_RunsFirstOnTheExecutorsThread) {
  std::thread::id prepared;
  std::thread::id ran;
  {
    Executor executor([&] { prepared = std::this_thread::get_id(); });
    executor.Post([&] { ran = std::this_thread::get_id(); });
  }
  EXPECT_EQ(prepared, ran);
}

}  // namespace
}  // namespace regroup
