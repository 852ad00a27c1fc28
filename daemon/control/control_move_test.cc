// Control: relayout and sync.
#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "daemon/control/control.h"
#include "daemon/control/control_test_util.h"
#include "daemon/control/fake_cluster.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/rpc_status.h"

namespace regroup {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

TEST(Control, Relayout_Good_CommitsTheNewLayout) {
  FakeCluster cluster(4);
  cluster.MustCreate("actor", {1, 2});
  Training training(cluster, cluster.TrainRequest("actor", 2));
  ASSERT_TRUE(training.Join().ok());
  const v1::Operation operation =
      cluster.Finish(cluster.control().RelayoutEngine(RelayoutRequest("actor", {0, 1, 3})));
  EXPECT_EQ(operation.error(), "");
  EXPECT_EQ(operation.bytes_moved(), 400);  // four ranks take part
  EXPECT_EQ(operation.peak_bytes(), 5003);
  EXPECT_THAT(operation.detail(), HasSubstr("2 -> 3 ranks"));
  const v1::Engine engine = cluster.Describe("actor");
  EXPECT_EQ(engine.state(), v1::ENGINE_STATE_READY);
  EXPECT_EQ(engine.generation(), 2);
  EXPECT_EQ(engine.step(), 2);
  EXPECT_THAT(engine.ranks(), ElementsAre(0, 1, 3));
  EXPECT_THAT(engine.groups(0).ranks(), ElementsAre(0, 1, 3));
  EXPECT_EQ(engine.spec().layout().dp(), 3);
  EXPECT_EQ(cluster.Count("1 OpenRendezvous"), 2);  // the lead of the union is the old lead
  EXPECT_THAT(cluster.Held(2), IsEmpty());
  EXPECT_THAT(cluster.Held(3), SizeIs(1));
  Training more(cluster, cluster.TrainRequest("actor", 1));
  EXPECT_TRUE(more.Join().ok());
  EXPECT_EQ(more.steps(), (std::vector<int64_t>{3}));
}

TEST(Control, Relayout_SameLayout_IsAMoveLikeAnyOther) {
  FakeCluster cluster(2);
  cluster.MustCreate("actor", {0, 1});
  EXPECT_EQ(
      cluster.Finish(cluster.control().RelayoutEngine(RelayoutRequest("actor", {0, 1}))).error(),
      "");
  EXPECT_EQ(cluster.Describe("actor").generation(), 2);
}

TEST(Control, Relayout_StaleGeneration_ReturnsAborted) {
  FakeCluster cluster(2);
  cluster.MustCreate("actor", {0});
  v1::RelayoutEngineRequest request = RelayoutRequest("actor", {1});
  request.set_expected_generation(2);
  const v1::Operation operation = cluster.Finish(cluster.control().RelayoutEngine(request));
  EXPECT_EQ(operation.error_code(), static_cast<int>(absl::StatusCode::kAborted));
  EXPECT_EQ(operation.error_detail().reason(), v1::ERROR_REASON_STALE);
  EXPECT_EQ(cluster.Count("0 PrepareMove"), 0);
  EXPECT_EQ(cluster.Describe("actor").generation(), 1);
}

TEST(Control, Relayout_AnyPhaseFails_RollsBackAndTrainsOn) {
  for (const auto phase :
       {v1::Command::kPrepareMove, v1::Command::kAgreeMove, v1::Command::kRunMove}) {
    FakeCluster cluster(3);
    cluster.MustCreate("actor", {0, 1});
    cluster.SetScript([phase](FakeWorker& worker, const v1::Command& command) {
      if (command.command_case() != phase) return absl::OkStatus();
      if (worker.rank() == 1) return Fails(absl::StatusCode::kResourceExhausted, "no room");
      // The others wait for rank 1, but for a preparation, which is local.
      return phase == v1::Command::kPrepareMove ? absl::OkStatus()
                                                : worker.AwaitAbort(command.engine_uid());
    });
    const v1::Operation operation =
        cluster.Finish(cluster.control().RelayoutEngine(RelayoutRequest("actor", {1, 2})));
    EXPECT_EQ(operation.error(), "engine actor: no room");
    EXPECT_EQ(cluster.Describe("actor").state(), v1::ENGINE_STATE_READY);
    EXPECT_EQ(cluster.Describe("actor").generation(), 1);
    EXPECT_THAT(cluster.Describe("actor").ranks(), ElementsAre(0, 1));
    for (int rank = 0; rank < 3; ++rank) {
      EXPECT_EQ(cluster.Count(absl::StrCat(rank, " RollBackMove")), 1);
      EXPECT_EQ(cluster.Count(absl::StrCat(rank, " CommitMove")), 0);
      EXPECT_EQ(cluster.Count(absl::StrCat(rank, " DropEngine")), rank == 2 ? 1 : 0);  // the guest
      EXPECT_EQ(cluster.Count(absl::StrCat(rank, " Abort")), 0);  // the trainer's own group lives
    }
    cluster.SetScript(nullptr);
    Training training(cluster, cluster.TrainRequest("actor", 1));
    EXPECT_TRUE(training.Join().ok());
  }
}

// Between its commands, so that no command of its own is late. The lead holds a part of the engine.
TEST(Control, Relayout_LeadOpensNoMeetingPlace_IsKilledAndNamed) {
  FakeCluster cluster(
      3, [](OperationTiming& timing) { timing.commands.rendezvous_margin = absl::ZeroDuration(); });
  v1::CreateEngineRequest create = FakeCluster::CreateRequest("actor", {0, 1});
  create.mutable_spec()->mutable_timeout()->set_seconds(1);
  ASSERT_EQ(cluster.Finish(cluster.control().CreateEngine(create)).error(), "");
  cluster.HangRendezvousOn(0);
  const v1::Operation operation =
      cluster.Finish(cluster.control().RelayoutEngine(RelayoutRequest("actor", {1, 2})));
  EXPECT_EQ(operation.phase(), "agree");
  EXPECT_EQ(operation.error_detail().reason(), v1::ERROR_REASON_RANK_LOST);
  EXPECT_THAT(operation.error_detail().ranks(), ElementsAre(0));
  EXPECT_EQ(cluster.Count("0 Kill"), 1);
  EXPECT_EQ(cluster.Count("1 Kill") + cluster.Count("2 Kill"), 0);
  const v1::Engine engine = cluster.Describe("actor");
  EXPECT_EQ(engine.state(), v1::ENGINE_STATE_FAILED);
  EXPECT_THAT(engine.error(), HasSubstr("rank 0 (pid 1000)"));
  EXPECT_THAT(engine.ranks(), ElementsAre(0, 1));
  EXPECT_THAT(cluster.Held(2), IsEmpty());
}

TEST(Control, Relayout_RanksNeedMoreThanTheirNodeHas_IsRefusedBeforeAgreeing) {
  FakeCluster cluster(3);
  cluster.MustCreate("actor", {0});
  cluster.SetEdit([](int rank, v1::CommandResult* result) {
    if (rank == 0) return;  // not in the destination
    result->mutable_prepare_move()->set_needed_bytes(600);
    result->mutable_prepare_move()->set_available_bytes(1000);
  });
  const v1::Operation operation =
      cluster.Finish(cluster.control().RelayoutEngine(RelayoutRequest("actor", {1, 2})));
  EXPECT_EQ(operation.error_code(), static_cast<int>(absl::StatusCode::kResourceExhausted));
  EXPECT_EQ(cluster.Count("0 AgreeMove"), 0);
  EXPECT_EQ(cluster.Count("1 RollBackMove"), 1);
  EXPECT_EQ(cluster.Describe("actor").state(), v1::ENGINE_STATE_READY);
}

TEST(Control, Relayout_NewRankRefusesItsCommit_IsKilledAndTheEngineFails) {
  FakeCluster cluster(3);
  cluster.MustCreate("actor", {0, 1});
  cluster.SetScript([](FakeWorker& worker, const v1::Command& command) {
    return command.has_commit_move() && worker.rank() == 2
               ? Fails(absl::StatusCode::kInternal, "cannot swap")
               : absl::OkStatus();
  });
  const v1::Operation operation =
      cluster.Finish(cluster.control().RelayoutEngine(RelayoutRequest("actor", {1, 2})));
  EXPECT_EQ(operation.error_detail().reason(), v1::ERROR_REASON_RANK_LOST);
  EXPECT_EQ(cluster.Count("2 Kill"), 1);
  EXPECT_EQ(cluster.Count("1 Kill"), 0);
  EXPECT_EQ(cluster.Describe("actor").state(), v1::ENGINE_STATE_FAILED);
  EXPECT_THAT(cluster.Held(0), IsEmpty());
  EXPECT_TRUE(cluster.AwaitCount("1 DropEngine", 1));
}

TEST(Control, Relayout_OldRankRefusesItsCommit_IsKilledAndTheEngineLives) {
  FakeCluster cluster(2);
  cluster.MustCreate("actor", {0});
  cluster.SetScript([](FakeWorker& worker, const v1::Command& command) {
    return command.has_commit_move() && worker.rank() == 0
               ? Fails(absl::StatusCode::kInternal, "cannot swap")
               : absl::OkStatus();
  });
  EXPECT_EQ(cluster.Finish(cluster.control().RelayoutEngine(RelayoutRequest("actor", {1}))).error(),
            "");
  EXPECT_EQ(cluster.Count("0 Kill"), 1);
  EXPECT_EQ(cluster.Describe("actor").state(), v1::ENGINE_STATE_READY);
}

TEST(Control, Relayout_CommitHangs_ItsWorkerIsKilled) {
  FakeCluster cluster(2, [](OperationTiming& timing) {
    timing.commands.local_margin = absl::Milliseconds(100) - absl::Seconds(30);
  });
  cluster.MustCreate("actor", {0});
  cluster.SetScript([](FakeWorker& worker, const v1::Command& command) {
    return command.has_commit_move() && worker.rank() == 1 ? worker.AwaitDeath() : absl::OkStatus();
  });
  const v1::Operation operation =
      cluster.Finish(cluster.control().RelayoutEngine(RelayoutRequest("actor", {1})));
  EXPECT_EQ(operation.error_detail().reason(), v1::ERROR_REASON_RANK_LOST);
  EXPECT_EQ(cluster.Count("1 Kill"), 1);
  EXPECT_EQ(cluster.Describe("actor").state(), v1::ENGINE_STATE_FAILED);
}

TEST(Control, Relayout_NewRankDies_KeepsTheOldLayout) {
  FakeCluster cluster(3);
  cluster.MustCreate("actor", {0, 1});
  cluster.SetScript([&](FakeWorker& worker, const v1::Command& command) {
    if (!command.has_run_move()) return absl::OkStatus();
    if (worker.rank() == 2) cluster.KillLater(2);
    return worker.rank() == 2 ? worker.AwaitDeath() : worker.AwaitAbort(command.engine_uid());
  });
  const v1::Operation operation =
      cluster.Finish(cluster.control().RelayoutEngine(RelayoutRequest("actor", {0, 1, 2})));
  EXPECT_EQ(operation.error_code(), static_cast<int>(absl::StatusCode::kUnavailable));
  EXPECT_THAT(operation.error(), HasSubstr("rank 2 (pid 1002) was killed by SIGKILL"));
  EXPECT_EQ(cluster.Describe("actor").state(), v1::ENGINE_STATE_READY);
  cluster.SetScript(nullptr);
  Training training(cluster, cluster.TrainRequest("actor", 1));
  EXPECT_TRUE(training.Join().ok());
}

TEST(Control, Relayout_OldRankDies_FailsTheEngineAndFreesAllRanks) {
  FakeCluster cluster(3);
  cluster.MustCreate("actor", {0, 1});
  cluster.SetScript([&](FakeWorker& worker, const v1::Command& command) {
    if (!command.has_run_move()) return absl::OkStatus();
    if (worker.rank() == 1) cluster.KillLater(1);
    return worker.rank() == 1 ? worker.AwaitDeath() : worker.AwaitAbort(command.engine_uid());
  });
  const v1::Operation operation =
      cluster.Finish(cluster.control().RelayoutEngine(RelayoutRequest("actor", {0, 2})));
  EXPECT_THAT(operation.error(), HasSubstr("rank 1 (pid 1001) was killed by SIGKILL"));
  EXPECT_EQ(cluster.Describe("actor").state(), v1::ENGINE_STATE_FAILED);
  EXPECT_TRUE(cluster.AwaitCount("0 DropEngine", 1));
  EXPECT_EQ(cluster.Count("2 RollBackMove"), 1);
}

TEST(Control, Relayout_Deleted_RollsBackFirst) {
  FakeCluster cluster(2);
  cluster.MustCreate("actor", {0});
  absl::Notification release;
  cluster.SetScript([&](FakeWorker& worker, const v1::Command& command) {
    if (command.has_run_move()) release.WaitForNotification();
    return absl::OkStatus();
  });
  const auto relayout = cluster.control().RelayoutEngine(RelayoutRequest("actor", {1}));
  ASSERT_TRUE(cluster.AwaitCount("1 RunMove", 1));
  const auto erase = cluster.control().DeleteEngine(DeleteRequest("actor"));
  release.Notify();
  EXPECT_THAT(cluster.Finish(relayout).error(), HasSubstr("is being deleted"));
  EXPECT_EQ(cluster.Finish(erase).error(), "");
  EXPECT_EQ(cluster.Count("1 CommitMove"), 0);
  EXPECT_EQ(cluster.Count("1 RollBackMove"), 1);
  EXPECT_THAT(cluster.Held(0), IsEmpty());
}

TEST(Control, Sync_Good_HandsOverTheVersion) {
  FakeCluster cluster(3);
  cluster.MustCreate("actor", {0, 1});
  cluster.MustCreate("rollout", {1, 2}, v1::ROLE_INFER);
  Training training(cluster, cluster.TrainRequest("actor", 3));
  ASSERT_TRUE(training.Join().ok());
  const v1::Operation operation =
      cluster.Finish(cluster.control().SyncEngine(SyncRequest("actor", "rollout")));
  EXPECT_EQ(operation.error(), "");
  EXPECT_EQ(operation.engine(), "rollout");
  EXPECT_EQ(cluster.Describe("rollout").weights_version(), 4);
  EXPECT_EQ(cluster.Describe("rollout").step(), 3);
  EXPECT_EQ(cluster.Describe("rollout").generation(), 1);
  EXPECT_EQ(cluster.Count("1 CommitMove"), 1);  // a rank of both takes part once
}

// Two syncs of the same weights are told apart, also after a restart.
TEST(Control, Sync_Again_HasANumberOfItsOwn) {
  FakeCluster cluster(2);
  cluster.MustCreate("actor", {0});
  cluster.MustCreate("rollout", {1}, v1::ROLE_INFER);
  std::vector<int64_t> numbers;
  bool fails = false;
  cluster.SetScript([&](FakeWorker& worker, const v1::Command& command) {
    if (worker.rank() != 0) return absl::OkStatus();
    if (command.has_prepare_move()) numbers.push_back(command.prepare_move().generation());
    return command.has_run_move() && fails ? Fails(absl::StatusCode::kDataLoss, "digest differs")
                                           : absl::OkStatus();
  });
  for (const bool failing : {false, true, false}) {
    fails = failing;
    const auto sync = cluster.control().SyncEngine(SyncRequest("actor", "rollout"));
    EXPECT_EQ(cluster.Finish(sync).error().empty(), !failing);
  }
  EXPECT_EQ(numbers, (std::vector<int64_t>{1, 2, 2}));  // one that was not decided does not count
}

TEST(Control, Sync_DestinationDeletedWhilePreparing_OnlyTheMoveIsAborted) {
  FakeCluster cluster(2);
  cluster.MustCreate("actor", {0});
  cluster.MustCreate("rollout", {1}, v1::ROLE_INFER);
  cluster.SetScript([](FakeWorker& worker, const v1::Command& command) {
    if (!command.has_prepare_move() || worker.rank() != 0) return absl::OkStatus();
    absl::Status aborted = worker.AwaitAbort(command.engine_uid());
    EXPECT_THAT(aborted.message(), HasSubstr("move aborted: "));
    return aborted;
  });
  const auto sync = cluster.control().SyncEngine(SyncRequest("actor", "rollout"));
  ASSERT_TRUE(cluster.AwaitCount("0 PrepareMove", 1));
  EXPECT_EQ(cluster.Finish(cluster.control().DeleteEngine(DeleteRequest("rollout"))).error(), "");
  EXPECT_NE(cluster.Finish(sync).error(), "");
  EXPECT_EQ(cluster.Count("0 Abort"), 0);
  EXPECT_EQ(cluster.Count("0 AbortMove"), 1);
  Training training(cluster, cluster.TrainRequest("actor", 1));
  EXPECT_TRUE(training.Join().ok());  // its own group lives
}

TEST(Control, Sync_DestinationDoesNotRollBack_TheTrainerLivesOn) {
  FakeCluster cluster(2);
  cluster.MustCreate("actor", {0});
  cluster.MustCreate("rollout", {1}, v1::ROLE_INFER);
  cluster.SetScript([](FakeWorker& worker, const v1::Command& command) {
    if (command.has_run_move()) return Fails(absl::StatusCode::kDataLoss, "digest differs");
    return command.has_roll_back_move() && worker.rank() == 1
               ? Fails(absl::StatusCode::kInternal, "cannot roll back")
               : absl::OkStatus();
  });
  EXPECT_THAT(cluster.Finish(cluster.control().SyncEngine(SyncRequest("actor", "rollout"))).error(),
              HasSubstr("digest differs"));
  EXPECT_EQ(cluster.Count("1 Kill"), 1);
  EXPECT_EQ(cluster.Count("0 Kill"), 0);
  EXPECT_EQ(cluster.Describe("actor").state(), v1::ENGINE_STATE_READY);
  EXPECT_EQ(cluster.Describe("rollout").state(), v1::ENGINE_STATE_FAILED);
  Training training(cluster, cluster.TrainRequest("actor", 1));
  EXPECT_TRUE(training.Join().ok());
}

TEST(Control, Sync_WrongPairs_AreRefused) {
  FakeCluster cluster(3);
  cluster.MustCreate("actor", {0});
  cluster.MustCreate("actor2", {1});
  cluster.MustCreate("rollout", {1}, v1::ROLE_INFER);
  v1::CreateEngineRequest other = FakeCluster::CreateRequest("small", {2}, v1::ROLE_INFER);
  other.mutable_spec()->set_model("mlp:in=4,hidden=4,layers=2,out=4");
  ASSERT_EQ(cluster.Finish(cluster.control().CreateEngine(other)).error(), "");
  const auto error = [&](const std::string& source, const std::string& destination) {
    return cluster.Finish(cluster.control().SyncEngine(SyncRequest(source, destination))).error();
  };
  EXPECT_THAT(cluster.control().SyncEngine(SyncRequest("rollout", "actor")).status().message(),
              HasSubstr("SRC=rollout is an inference engine"));
  EXPECT_THAT(cluster.control().SyncEngine(SyncRequest("actor", "actor2")).status().message(),
              HasSubstr("DST=actor2 is a trainer"));
  EXPECT_THAT(error("actor", "small"), HasSubstr("different models"));
  EXPECT_EQ(cluster.control().SyncEngine(SyncRequest("actor", "actor")).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(cluster.control().SyncEngine(SyncRequest("actor", "nobody")).status().code(),
            absl::StatusCode::kNotFound);
  EXPECT_EQ(cluster.Count("0 PrepareMove"), 0);
}

TEST(Control, Sync_AndRelayoutAtOnce_RunInTheOrderOfAcceptance) {
  FakeCluster cluster(4);
  cluster.MustCreate("actor", {0, 1});
  cluster.MustCreate("r1", {2}, v1::ROLE_INFER);
  cluster.MustCreate("r2", {3}, v1::ROLE_INFER);
  std::vector<absl::StatusOr<v1::Operation>> accepted;
  std::vector<std::string> leads;  // of the relayouts' destinations
  absl::Mutex mutex;
  cluster.SetScript([&](FakeWorker& worker, const v1::Command& command) {
    const v1::PrepareMove& move = command.prepare_move();
    if (command.has_prepare_move() && worker.rank() == move.source().layout().ranks(0)) {
      absl::MutexLock lock(&mutex);
      leads.push_back(absl::StrCat(move.destination_layout().ranks(0)));
    }
    return absl::OkStatus();
  });
  for (int round = 0; round < 10; ++round) {
    accepted.push_back(cluster.control().SyncEngine(SyncRequest("actor", "r1")));
    accepted.push_back(cluster.control().RelayoutEngine(RelayoutRequest(
        "actor", round % 2 == 0 ? std::vector<int>{2, 3} : std::vector<int>{0, 1})));
    accepted.push_back(cluster.control().SyncEngine(SyncRequest("actor", "r2")));
  }
  for (const auto& operation : accepted) EXPECT_EQ(cluster.Finish(operation).error(), "");
  EXPECT_EQ(cluster.Describe("actor").generation(), 11);
  std::vector<std::string> expected;
  for (int round = 0; round < 10; ++round) {
    for (const char* lead : {"2", round % 2 == 0 ? "2" : "0", "3"}) expected.push_back(lead);
  }
  EXPECT_EQ(leads, expected);
  EXPECT_FALSE(cluster.overlapped());
}

}  // namespace
}  // namespace regroup
