// Relayout and sync through the Worker service.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "daemon/worker/worker_cluster.h"
#include "engine/layout/layout.h"
#include "proto/rpc_status.h"

namespace regroup {
namespace {

using ::testing::HasSubstr;

struct Progress {
  int64_t step = 0;
  int64_t weights_version = 1;
};

// One move of engine `uid` as a primary drives it, phase by phase.
class MoveDriver {
 public:
  MoveDriver(WorkerCluster* cluster, uint64_t uid, const v1::EngineSpec& source,
             const std::vector<int>& destination, const Progress& progress)
      : cluster_(cluster), uid_(uid) {
    const std::vector<int> old(source.layout().ranks().begin(), source.layout().ranks().end());
    ranks_ = UnionOfRanks(old, destination);
    v1::PrepareMove* prepare = prepare_.mutable_prepare_move();
    prepare->set_kind(v1::PrepareMove::KIND_RELAYOUT);
    *prepare->mutable_source() = source;
    for (int rank : destination) prepare->mutable_destination_layout()->add_ranks(rank);
    prepare->set_step(progress.step);
    prepare->set_data_position(progress.step);
    prepare->set_weights_version(progress.weights_version);
    prepare->set_generation(2);
  }

  void Sync(uint64_t destination_uid) {
    prepare_.mutable_prepare_move()->set_kind(v1::PrepareMove::KIND_SYNC);
    prepare_.mutable_prepare_move()->set_destination_uid(destination_uid);
  }

  const std::vector<int>& ranks() const { return ranks_; }

  WorkerCluster::Results Prepare() { return cluster_->ExecuteOn(ranks_, uid_, prepare_); }
  v1::Command AgreeCommand() {
    v1::Command command;
    *command.mutable_agree_move()->mutable_rendezvous() =
        *cluster_->OpenRendezvous(ranks_[0], uid_);
    return command;
  }
  WorkerCluster::Results Agree() { return cluster_->ExecuteOn(ranks_, uid_, AgreeCommand()); }
  WorkerCluster::Results Run() {
    v1::Command command;
    command.mutable_run_move();
    return cluster_->ExecuteOn(ranks_, uid_, command);
  }
  WorkerCluster::Results Commit() {
    v1::Command command;
    command.mutable_commit_move();
    return cluster_->ExecuteOn(ranks_, uid_, command);
  }
  WorkerCluster::Results RollBack() {
    v1::Command command;
    command.mutable_roll_back_move();
    return cluster_->ExecuteOn(ranks_, uid_, command);
  }

  void All() {
    for (const auto& phase :
         {&MoveDriver::Prepare, &MoveDriver::Agree, &MoveDriver::Run, &MoveDriver::Commit}) {
      const absl::Status status = FirstError((this->*phase)());
      ASSERT_TRUE(status.ok()) << status;
    }
  }

 private:
  WorkerCluster* cluster_;
  const uint64_t uid_;
  std::vector<int> ranks_;
  v1::Command prepare_;
};

class RelayoutTest : public ::testing::TestWithParam<std::vector<int>> {};

INSTANTIATE_TEST_SUITE_P(Destinations, RelayoutTest,
                         ::testing::Values(std::vector<int>{0, 1, 2}, std::vector<int>{3, 0},
                                           std::vector<int>{2}, std::vector<int>{2, 1},
                                           std::vector<int>{3, 1, 0, 2}));

// A second engine that never moves is the reference: a round trip changes no bit.
TEST_P(RelayoutTest, Relayout_ThereAndBack_TrainsAsIfItHadStayed) {
  const std::vector<int> destination = GetParam();
  WorkerCluster cluster(4);
  v1::EngineSpec spec = WorkerCluster::TrainerSpec("actor", {1, 2});
  cluster.Create(1, spec);
  cluster.Create(2, WorkerCluster::TrainerSpec("reference", {1, 2}));
  ASSERT_EQ(cluster.Train(1, {1, 2}, 3), cluster.Train(2, {1, 2}, 3));
  const std::string before = cluster.Export(1, {1, 2});

  MoveDriver there(&cluster, 1, spec, destination, {3, 4});
  there.All();
  EXPECT_EQ(cluster.Export(1, destination), before);
  for (int rank = 0; rank < 4; ++rank) {
    int held = 0;
    for (const v1::HeldEngine& engine : cluster.Engines(rank)) {
      if (engine.uid() != 1) continue;
      ++held;
      EXPECT_THAT(
          std::vector<int>(engine.groups(0).ranks().begin(), engine.groups(0).ranks().end()),
          ::testing::ContainerEq(destination));
    }
    const bool is_member =
        std::find(destination.begin(), destination.end(), rank) != destination.end();
    EXPECT_EQ(held, is_member ? 1 : 0) << rank;
  }

  v1::EngineSpec moved = spec;
  moved.mutable_layout()->clear_ranks();
  for (int rank : destination) moved.mutable_layout()->add_ranks(rank);
  MoveDriver back(&cluster, 1, moved, {1, 2}, {3, 4});
  back.All();
  EXPECT_EQ(cluster.Train(1, {1, 2}, 3), cluster.Train(2, {1, 2}, 3));
  EXPECT_EQ(cluster.Export(1, {1, 2}), cluster.Export(2, {1, 2}));
}

TEST(WorkerMoveTest, Run_ReportsBytesAndPeak) {
  WorkerCluster cluster(3);
  const v1::EngineSpec spec = WorkerCluster::TrainerSpec("actor", {0, 1});
  cluster.Create(1, spec);
  MoveDriver move(&cluster, 1, spec, {2}, {0, 1});
  ASSERT_TRUE(FirstError(move.Prepare()).ok());
  ASSERT_TRUE(FirstError(move.Agree()).ok());
  const WorkerCluster::Results results = move.Run();
  ASSERT_TRUE(FirstError(results).ok()) << FirstError(results);
  const int64_t elements = 5 * 17 + 17 + 17 * 17 + 17 + 17 * 2 + 2;
  EXPECT_EQ(results.at(2)->run_move().bytes_received(), 12 * elements);
  EXPECT_EQ(results.at(0)->run_move().bytes_sent() + results.at(1)->run_move().bytes_sent(),
            12 * elements);
  EXPECT_GE(results.at(2)->run_move().peak_bytes(), 12 * elements);
  for (const v1::HeldEngine& engine : cluster.Engines(2)) {
    EXPECT_EQ(engine.bytes_done(), 12 * elements);
    EXPECT_EQ(engine.bytes_total(), 12 * elements);
  }
  ASSERT_TRUE(FirstError(move.Commit()).ok());
  EXPECT_TRUE(FirstError(move.Commit()).ok());  // said again, it finds nothing to do
}

TEST(WorkerMoveTest, RollBack_AfterEveryPhase_LeavesTheOldLayoutTraining) {
  WorkerCluster cluster(3);
  const v1::EngineSpec spec = WorkerCluster::TrainerSpec("actor", {0, 1});
  cluster.Create(1, spec);
  const std::string before = cluster.Export(1, {0, 1});
  for (int phases = 1; phases <= 3; ++phases) {
    MoveDriver move(&cluster, 1, spec, {1, 2}, {0, 1});
    ASSERT_TRUE(FirstError(move.Prepare()).ok());
    if (phases > 1) {
      ASSERT_TRUE(FirstError(move.Agree()).ok());
    }
    if (phases > 2) {
      ASSERT_TRUE(FirstError(move.Run()).ok());
    }
    ASSERT_TRUE(FirstError(move.RollBack()).ok());
    EXPECT_EQ(cluster.Engines(2).size(), 0u);
    EXPECT_EQ(cluster.Export(1, {0, 1}), before);
  }
  EXPECT_EQ(cluster.Train(1, {0, 1}, 2).size(), 2u);
}

TEST(WorkerMoveTest, Commit_BeforeTheRun_IsRefused) {
  WorkerCluster cluster(2);
  const v1::EngineSpec spec = WorkerCluster::TrainerSpec("actor", {0});
  cluster.Create(1, spec);
  MoveDriver move(&cluster, 1, spec, {1}, {0, 1});
  ASSERT_TRUE(FirstError(move.Prepare()).ok());
  EXPECT_EQ(FirstError(move.Commit()).code(), absl::StatusCode::kFailedPrecondition);
  ASSERT_TRUE(FirstError(move.RollBack()).ok());
}

TEST(WorkerMoveTest, Run_SaidAgainOrBesideOtherCommands_IsRefused) {
  WorkerCluster cluster(2);
  const v1::EngineSpec spec = WorkerCluster::TrainerSpec("actor", {0});
  cluster.Create(1, spec);
  cluster.Train(1, {0}, 1);
  MoveDriver move(&cluster, 1, spec, {1}, {1, 2});
  const auto prepared = move.Prepare();
  ASSERT_TRUE(FirstError(prepared).ok());
  EXPECT_EQ(prepared.at(0)->prepare_move().needed_bytes(), 0);
  EXPECT_GT(prepared.at(1)->prepare_move().needed_bytes(), 0);
  EXPECT_GT(prepared.at(1)->prepare_move().available_bytes(), 1 << 20);
  v1::Command step;
  step.mutable_train_step();
  v1::Command output;
  output.mutable_export_engine()->set_directory(cluster.folder() + "/never");
  for (const v1::Command& command : {step, output}) {
    const absl::Status status = cluster.Execute(0, 1, command).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("a move is under way"));
  }
  ASSERT_TRUE(FirstError(move.Agree()).ok());
  ASSERT_TRUE(FirstError(move.Run()).ok());
  EXPECT_EQ(FirstError(move.Run()).code(), absl::StatusCode::kFailedPrecondition);
  ASSERT_TRUE(FirstError(move.Commit()).ok());
  EXPECT_EQ(cluster.Train(1, {1}, 1).size(), 1u);
}

TEST(WorkerMoveTest, Agree_PrimaryWithAnotherStep_IsAbortedAndRolledBack) {
  WorkerCluster cluster(2);
  const v1::EngineSpec spec = WorkerCluster::TrainerSpec("actor", {0});
  cluster.Create(1, spec);
  cluster.Train(1, {0}, 2);
  MoveDriver move(&cluster, 1, spec, {1}, {1, 2});
  ASSERT_TRUE(FirstError(move.Prepare()).ok());
  for (const auto& [rank, result] : move.Agree()) {
    EXPECT_EQ(result.status().code(), absl::StatusCode::kAborted) << result.status();
    EXPECT_THAT(std::string(result.status().message()), HasSubstr("'step 2'"));
  }
  ASSERT_TRUE(FirstError(move.RollBack()).ok());
  EXPECT_EQ(cluster.Train(1, {0}, 1).size(), 1u);
}

// A primary that ended between the ranks' agreement on settings and its own row sends old ones.
TEST(WorkerMoveTest, Agree_PrimaryWithOtherSettings_IsAbortedAndTheOldLayoutGoesOn) {
  WorkerCluster cluster(2);
  const v1::EngineSpec spec = WorkerCluster::TrainerSpec("actor", {0});
  cluster.Create(1, spec);
  cluster.Train(1, {0}, 1);
  v1::EngineSpec other_rate = spec, other_clip = spec, other_checks = spec, other_timeout = spec;
  other_rate.mutable_optimizer()->set_learning_rate(0.125);
  other_clip.set_clip_norm(0.5);
  other_checks.set_checks(v1::CHECK_LEVEL_FULL);
  other_timeout.mutable_timeout()->set_seconds(21);
  struct Case {
    v1::EngineSpec spec;
    std::string held, sent;
  };
  for (const Case& c : {Case{other_rate, "adamw lr 0.01", "adamw lr 0.125"},
                        Case{other_clip, "'clip norm 0'", "'clip norm 0.5'"},
                        Case{other_checks, "'checks 1'", "'checks 2'"},
                        Case{other_timeout, "'timeout 20s'", "'timeout 21s'"}}) {
    MoveDriver move(&cluster, 1, c.spec, {0, 1}, {1, 2});
    ASSERT_TRUE(FirstError(move.Prepare()).ok());
    for (const auto& [rank, result] : move.Agree()) {
      EXPECT_EQ(result.status().code(), absl::StatusCode::kAborted) << result.status();
      EXPECT_THAT(std::string(result.status().message()),
                  ::testing::AllOf(HasSubstr(c.held), HasSubstr(c.sent)));
    }
    ASSERT_TRUE(FirstError(move.RollBack()).ok());
    EXPECT_EQ(cluster.Engines(1).size(), 0u);
  }
  EXPECT_EQ(cluster.Train(1, {0}, 1).size(), 1u);
}

// Rank 1 never agrees: the move is cancelled on rank 0, its engine is as it was.
TEST(WorkerMoveTest, Abort_MoveOnly_EndsTheMoveAndSparesTheEngine) {
  WorkerCluster cluster(2);
  const v1::EngineSpec spec = WorkerCluster::TrainerSpec("actor", {0});
  cluster.Create(1, spec);
  MoveDriver move(&cluster, 1, spec, {1}, {0, 1});
  ASSERT_TRUE(FirstError(move.Prepare()).ok());
  const v1::Command agree = move.AgreeCommand();
  const absl::Time start = absl::Now();
  ASSERT_TRUE(cluster.Abort(0, 1, "cancelled by a client", /*move_only=*/true).ok());
  const absl::Status status = cluster.Execute(0, 1, agree).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kCancelled) << status;
  EXPECT_LT(absl::Now() - start, absl::Seconds(15));
  ASSERT_TRUE(FirstError(move.RollBack()).ok());
  EXPECT_EQ(cluster.Train(1, {0}, 1).size(), 1u);

  ASSERT_TRUE(cluster.Abort(0, 1, "no move is under way", /*move_only=*/true).ok());
  EXPECT_EQ(cluster.Train(1, {0}, 1).size(), 1u);
  MoveDriver again(&cluster, 1, spec, {1}, {2, 3});
  again.All();
  EXPECT_EQ(cluster.Train(1, {1}, 1).size(), 1u);
}

TEST(WorkerMoveTest, Prepare_EngineElsewhere_IsRefused) {
  WorkerCluster cluster(2);
  cluster.Create(1, WorkerCluster::TrainerSpec("actor", {0, 1}));
  MoveDriver move(&cluster, 1, WorkerCluster::TrainerSpec("actor", {1, 0}), {0}, {0, 1});
  const absl::Status status = FirstError(move.Prepare());
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("lies on ranks 0-1"));
}

class SyncTest : public ::testing::TestWithParam<std::vector<int>> {};

INSTANTIATE_TEST_SUITE_P(Replicas, SyncTest,
                         ::testing::Values(std::vector<int>{2}, std::vector<int>{0},
                                           std::vector<int>{3, 1}, std::vector<int>{0, 1, 2}));

TEST_P(SyncTest, Sync_AfterTraining_ReplicasHaveTheTrainersWeights) {
  const std::vector<int> replicas = GetParam();
  WorkerCluster cluster(4);
  const v1::EngineSpec spec = WorkerCluster::TrainerSpec("actor", {0, 1});
  cluster.Create(1, spec);
  v1::EngineSpec infer = WorkerCluster::TrainerSpec("rollout", replicas);
  infer.set_role(v1::ROLE_INFER);
  cluster.Create(2, infer);
  EXPECT_EQ(cluster.Export(2, replicas), cluster.Export(1, {0, 1}));  // the same seed
  cluster.Train(1, {0, 1}, 2);
  const std::string trained = cluster.Export(1, {0, 1});
  EXPECT_NE(cluster.Export(2, replicas), trained);

  MoveDriver sync(&cluster, 1, spec, replicas, {2, 3});
  sync.Sync(2);
  sync.All();
  EXPECT_EQ(cluster.Export(2, replicas), trained);
  for (int rank : sync.ranks()) {
    for (const v1::HeldEngine& engine : cluster.Engines(rank)) {
      EXPECT_EQ(engine.groups_size(), 1) << engine.name() << " is a guest on rank " << rank;
    }
  }
  EXPECT_EQ(cluster.Train(1, {0, 1}, 1).size(), 1u);
  EXPECT_EQ(cluster.Export(2, replicas), trained);
}

// Between the move and its commit: the source has nothing to wait for any more.
TEST(WorkerMoveTest, Sync_ReplicaDroppedBeforeTheCommit_TheTrainerGoesOn) {
  WorkerCluster cluster(2);
  const v1::EngineSpec spec = WorkerCluster::TrainerSpec("actor", {0, 1});
  cluster.Create(1, spec);
  v1::EngineSpec infer = WorkerCluster::TrainerSpec("rollout", {0, 1});
  infer.set_role(v1::ROLE_INFER);
  cluster.Create(2, infer);
  MoveDriver sync(&cluster, 1, spec, {0, 1}, {0, 1});
  sync.Sync(2);
  for (const auto& phase : {&MoveDriver::Prepare, &MoveDriver::Agree, &MoveDriver::Run}) {
    ASSERT_TRUE(FirstError((sync.*phase)()).ok());
  }
  v1::Command drop;
  drop.mutable_drop_engine();
  ASSERT_TRUE(FirstError(cluster.ExecuteOn({1}, 2, drop)).ok());
  EXPECT_TRUE(FirstError(sync.Commit()).ok());
  EXPECT_EQ(cluster.Train(1, {0, 1}, 1).size(), 1u);
}

TEST(WorkerMoveTest, Sync_OtherModel_IsRefused) {
  WorkerCluster cluster(1);
  const v1::EngineSpec spec = WorkerCluster::TrainerSpec("actor", {0});
  cluster.Create(1, spec);
  v1::EngineSpec infer = WorkerCluster::TrainerSpec("rollout", {0});
  infer.set_role(v1::ROLE_INFER);
  infer.set_model("mlp:in=5,hidden=16,layers=3,out=2");
  cluster.Create(2, infer);
  MoveDriver sync(&cluster, 1, spec, {0}, {0, 1});
  sync.Sync(2);
  EXPECT_EQ(FirstError(sync.Prepare()).code(), absl::StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace regroup
