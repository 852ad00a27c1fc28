// What a worker says of how far its engines are: a primary that restarted goes by it.
#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "daemon/worker/worker_cluster.h"

namespace regroup {
namespace {

constexpr uint64_t kUid = 1;

// Of the engine on the rank; an empty one if it holds nothing of it.
v1::Standing StandingOn(WorkerCluster& cluster, int rank) {
  for (const v1::HeldEngine& engine : cluster.Engines(rank)) {
    if (engine.uid() == kUid) return engine.standing();
  }
  return {};
}

TEST(WorkerStanding, FollowsTheEngine) {
  WorkerCluster cluster(3);
  const v1::EngineSpec spec = WorkerCluster::TrainerSpec("actor", {0, 1});
  cluster.Create(kUid, spec);
  cluster.Train(kUid, {0, 1}, 2);
  for (int rank : {0, 1}) {
    const v1::Standing standing = StandingOn(cluster, rank);
    EXPECT_TRUE(standing.formed());
    EXPECT_FALSE(standing.failed());
    ASSERT_EQ(standing.ranks_size(), 2);
    EXPECT_EQ(standing.ranks(1), 1);
    EXPECT_EQ(standing.step(), 2);
    EXPECT_EQ(standing.data_position(), 2);
    EXPECT_EQ(standing.weights_version(), 3);
    EXPECT_EQ(standing.commands(), 0);
    EXPECT_EQ(standing.running(), "");
    EXPECT_FALSE(standing.has_move());
  }

  v1::Command prepare;
  v1::PrepareMove& move = *prepare.mutable_prepare_move();
  move.set_kind(v1::PrepareMove::KIND_RELAYOUT);
  *move.mutable_source() = spec;
  for (int rank : {1, 2}) move.mutable_destination_layout()->add_ranks(rank);
  move.set_step(2);
  move.set_data_position(2);
  move.set_weights_version(3);
  move.set_generation(2);
  ASSERT_TRUE(FirstError(cluster.ExecuteOn({0, 1, 2}, kUid, prepare)).ok());
  for (int rank : {0, 1, 2}) {
    const v1::Standing standing = StandingOn(cluster, rank);
    EXPECT_EQ(standing.formed(), rank != 2) << "2 is a guest";
    ASSERT_TRUE(standing.has_move());
    EXPECT_EQ(standing.move().generation(), 2);
    EXPECT_EQ(standing.move().destination_uid(), 0u);
    EXPECT_FALSE(standing.move().verified());
  }
  v1::Command roll_back;
  roll_back.mutable_roll_back_move();
  ASSERT_TRUE(FirstError(cluster.ExecuteOn({0, 1, 2}, kUid, roll_back)).ok());
  EXPECT_FALSE(StandingOn(cluster, 0).has_move());
  EXPECT_TRUE(StandingOn(cluster, 2).ranks().empty());
}

// One member was told of a step, the other was not: the state says who.
TEST(WorkerStanding, NamesTheCommandThatRuns) {
  WorkerCluster cluster(2);
  cluster.Create(kUid, WorkerCluster::TrainerSpec("actor", {0, 1}));
  cluster.Train(kUid, {0, 1}, 1);
  v1::Command step;
  step.mutable_train_step();
  absl::StatusOr<v1::CommandResult> first;
  std::thread thread([&] { first = cluster.Execute(0, kUid, step); });
  const absl::Time deadline = absl::Now() + WorkerCluster::kDeadline;
  while (StandingOn(cluster, 0).running() != "train_step" && absl::Now() < deadline) {
    absl::SleepFor(absl::Milliseconds(2));
  }
  EXPECT_EQ(StandingOn(cluster, 0).running(), "train_step");
  EXPECT_EQ(StandingOn(cluster, 0).commands(), 1);
  EXPECT_EQ(StandingOn(cluster, 0).step(), 1) << "of the last command that is over";
  EXPECT_EQ(StandingOn(cluster, 1).commands(), 0);
  EXPECT_TRUE(cluster.Execute(1, kUid, step).ok());
  thread.join();
  EXPECT_TRUE(first.ok()) << first.status();
  for (int rank : {0, 1}) EXPECT_EQ(StandingOn(cluster, rank).step(), 2);
}

}  // namespace
}  // namespace regroup
