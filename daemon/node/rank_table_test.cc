#include "daemon/node/rank_table.h"

#include "gtest/gtest.h"

namespace regroup {
namespace {

v1::WorkerState State(int64_t commands_done, int64_t rss_bytes) {
  v1::WorkerState state;
  state.set_commands_done(commands_done);
  state.set_rss_bytes(rss_bytes);
  return state;
}

TEST(RankTable, Answered_OlderThanWhatIsKnown_IsIgnored) {
  RankTable table(1);
  const WorkerRef first{0, 7};
  table.Started(WorkerClient::Make(first, "/nosuch"), 100);
  table.Answered(first, State(5, 50));
  table.Answered(first, State(4, 40));
  EXPECT_EQ(table.List()[0].rss_bytes, 50);
  table.Answered(first, State(5, 51));
  EXPECT_EQ(table.List()[0].rss_bytes, 51);
  table.Lost(first, "died", "died");
  const WorkerRef second{0, 8};  // counts from 0 again
  table.Started(WorkerClient::Make(second, "/nosuch"), 101);
  table.Answered(second, State(1, 10));
  EXPECT_EQ(table.List()[0].rss_bytes, 10);
}

TEST(RankTable, AwaitLost_TellsWhetherThatProcessIsGone) {
  RankTable table(1);
  const WorkerRef ref{0, 7};
  table.Started(WorkerClient::Make(ref, "/nosuch"), 100);
  EXPECT_FALSE(table.AwaitLost(ref, absl::Now()));
  table.Lost(ref, "died", "died");
  EXPECT_TRUE(table.AwaitLost(ref, absl::Now()));
}

TEST(RankTable, AwaitReady_UnknownRank_SaysWhichThereAre) {
  RankTable table(2);
  table.AddRanks(5, 1, "b");
  const auto awaited =
      table.AwaitReady({1, 4}, absl::InfiniteFuture(), [] { return absl::OkStatus(); });
  EXPECT_EQ(awaited.status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(awaited.status().message(), "--ranks: rank 4 does not exist; allowed: 0-1,5");
  EXPECT_EQ(RankTable(0)
                .AwaitReady({0}, absl::InfiniteFuture(), [] { return absl::OkStatus(); })
                .status()
                .message(),
            "--ranks: rank 0 does not exist; there is none");
}

// Whoever would kill a worker that does not answer asks first whether it lives.
TEST(RankTable, EndCalls_NobodyIsReachedAnyMore) {
  RankTable table(1);
  const WorkerRef ref{0, 7};
  table.Started(WorkerClient::Make(ref, "/nosuch"), 100);
  ASSERT_TRUE(table.IsAlive(ref));
  table.EndCalls("the primary is stopping");
  EXPECT_FALSE(table.IsAlive(ref));
  EXPECT_EQ(table.Find(ref).status().message(), "the primary is stopping");
  EXPECT_EQ(table.Serving(0), ref) << "it is not lost";
}

}  // namespace
}  // namespace regroup
