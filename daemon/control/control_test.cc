#include "daemon/control/control.h"

#include <atomic>
#include <future>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
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

absl::Status Fails(absl::StatusCode code, const std::string& message) {
  return MakeError(code, message, v1::ERROR_REASON_UNSPECIFIED);
}

v1::DeleteEngineRequest DeleteRequest(const std::string& name) {
  v1::DeleteEngineRequest request;
  request.set_name(name);
  return request;
}

v1::RelayoutEngineRequest RelayoutRequest(const std::string& name, const std::vector<int>& ranks) {
  v1::RelayoutEngineRequest request;
  request.set_name(name);
  for (int rank : ranks) request.mutable_layout()->add_ranks(rank);
  return request;
}

v1::SyncEngineRequest SyncRequest(const std::string& source, const std::string& destination) {
  v1::SyncEngineRequest request;
  request.set_source(source);
  request.set_destination(destination);
  return request;
}

// A train call on a thread of its own.
class Training {
 public:
  Training(FakeCluster& cluster, const v1::TrainRequest& request)
      : cancellation_(std::make_shared<Cancellation>()) {
    thread_ = std::thread([this, &cluster, request] {
      status_ = cluster.control().Train(request, cancellation_, [this](const v1::TrainRecord& r) {
        absl::MutexLock lock(&mutex_);
        steps_.push_back(r.step());
        return true;
      });
    });
  }
  ~Training() {
    if (thread_.joinable()) thread_.join();
  }

  void ClientGoesAway() { cancellation_->Cancel(CancelledError("the client went away")); }
  absl::Status Join() {
    thread_.join();
    return status_;
  }
  std::vector<int64_t> steps() {
    absl::MutexLock lock(&mutex_);
    return steps_;
  }
  bool AwaitSteps(size_t count) {
    absl::MutexLock lock(&mutex_);
    const auto enough = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return steps_.size() >= count;
    };
    return mutex_.AwaitWithTimeout(absl::Condition(&enough), kPatience);
  }

 private:
  const std::shared_ptr<Cancellation> cancellation_;
  absl::Mutex mutex_;
  std::vector<int64_t> steps_ ABSL_GUARDED_BY(mutex_);
  absl::Status status_;
  std::thread thread_;
};

TEST(Control, Create_Good_IsReadyOnItsRanksOnly) {
  FakeCluster cluster(4);
  const v1::Operation operation =
      cluster.Finish(cluster.control().CreateEngine(FakeCluster::CreateRequest("actor", {2, 1})));
  EXPECT_EQ(operation.error(), "");
  EXPECT_EQ(operation.phase(), "done");
  const v1::Engine engine = cluster.Describe("actor");
  EXPECT_EQ(engine.state(), v1::ENGINE_STATE_READY);
  EXPECT_THAT(engine.ranks(), ElementsAre(2, 1));
  EXPECT_EQ(engine.generation(), 1);
  EXPECT_EQ(engine.weights_version(), 1);
  EXPECT_EQ(engine.activity(), "");
  EXPECT_EQ(engine.parameters(), 10);
  ASSERT_EQ(engine.groups_size(), 1);
  EXPECT_THAT(engine.groups(0).ranks(), ElementsAre(2, 1));
  ASSERT_EQ(engine.memory_size(), 2);
  EXPECT_EQ(engine.memory(0).rank(), 2);
  EXPECT_EQ(engine.memory(0).peak_bytes(), 2002);
  EXPECT_EQ(cluster.Count("2 OpenRendezvous"), 1);  // on the lead
  for (const std::string& entry : cluster.Log()) {
    EXPECT_TRUE(entry[0] == '1' || entry[0] == '2') << entry;
  }
  const v1::GetStatusResponse status = cluster.control().Status();
  EXPECT_THAT(status.ranks(1).engines(), ElementsAre("actor"));
  EXPECT_THAT(status.ranks(0).engines(), IsEmpty());
}

TEST(Control, Create_PrepareFailsOnOneRank_LeavesNothing) {
  FakeCluster cluster(3);
  cluster.SetScript([](FakeWorker& worker, const v1::Command& command) {
    return worker.rank() == 1 && command.has_prepare_engine()
               ? Fails(absl::StatusCode::kInvalidArgument, "config.json: bad")
               : absl::OkStatus();
  });
  const v1::Operation operation = cluster.Finish(
      cluster.control().CreateEngine(FakeCluster::CreateRequest("actor", {0, 1, 2})));
  EXPECT_EQ(operation.error_code(), static_cast<int>(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(operation.error(), HasSubstr("engine actor: config.json: bad"));
  EXPECT_EQ(operation.phase(), "prepare");
  EXPECT_EQ(operation.error_detail().engine(), "actor");
  EXPECT_THAT(cluster.control().Status().engines(), IsEmpty());
  for (int rank = 0; rank < 3; ++rank) EXPECT_THAT(cluster.Held(rank), IsEmpty()) << rank;
  cluster.SetScript(nullptr);
  cluster.MustCreate("actor", {0, 1, 2});
}

TEST(Control, Create_FormFailsOnOneRank_EndsTheOthersAndNamesTheCause) {
  FakeCluster cluster(3);
  cluster.SetScript([](FakeWorker& worker, const v1::Command& command) {
    if (!command.has_form_engine()) return absl::OkStatus();
    return worker.rank() == 2 ? Fails(absl::StatusCode::kResourceExhausted, "out of memory")
                              : worker.AwaitAbort(command.engine_uid());
  });
  const v1::Operation operation = cluster.Finish(
      cluster.control().CreateEngine(FakeCluster::CreateRequest("actor", {0, 1, 2})));
  EXPECT_THAT(operation.error(), HasSubstr("out of memory"));
  EXPECT_EQ(operation.phase(), "form");
  EXPECT_EQ(cluster.Count("0 Abort"), 1);
  EXPECT_THAT(cluster.control().Status().engines(), IsEmpty());
  EXPECT_THAT(cluster.Held(0), IsEmpty());
}

TEST(Control, Create_RankDiesWhileForming_EndsAtOnceAndWorksAgain) {
  FakeCluster cluster(2);
  cluster.SetScript([&](FakeWorker& worker, const v1::Command& command) {
    if (!command.has_form_engine()) return absl::OkStatus();
    if (worker.rank() == 1) cluster.KillLater(1);
    return worker.rank() == 1 ? worker.AwaitDeath() : worker.AwaitAbort(command.engine_uid());
  });
  const v1::Operation operation =
      cluster.Finish(cluster.control().CreateEngine(FakeCluster::CreateRequest("actor", {0, 1})));
  EXPECT_EQ(operation.error_code(), static_cast<int>(absl::StatusCode::kUnavailable));
  EXPECT_THAT(operation.error(), HasSubstr("rank 1 (pid 1001) was killed by SIGKILL"));
  EXPECT_EQ(operation.error_detail().reason(), v1::ERROR_REASON_RANK_LOST);
  EXPECT_THAT(operation.error_detail().ranks(), ElementsAre(1));
  EXPECT_THAT(cluster.Held(0), IsEmpty());

  // Asked for at once, while the rank is still LOST.
  cluster.SetScript(nullptr);
  const auto again = cluster.control().CreateEngine(FakeCluster::CreateRequest("actor", {0, 1}));
  cluster.Restart(1);
  EXPECT_EQ(cluster.Finish(again).error(), "");
}

TEST(Control, Create_Cancelled_EndsWhatHangsAndFreesTheName) {
  FakeCluster cluster(2);
  cluster.SetScript([](FakeWorker& worker, const v1::Command& command) {
    return command.has_form_engine() ? worker.AwaitAbort(command.engine_uid()) : absl::OkStatus();
  });
  const auto accepted = cluster.control().CreateEngine(FakeCluster::CreateRequest("actor", {0, 1}));
  ASSERT_TRUE(accepted.ok());
  ASSERT_TRUE(cluster.AwaitCount("1 FormEngine", 1));
  EXPECT_EQ(cluster.Describe("actor").state(), v1::ENGINE_STATE_FORMING);  // answers meanwhile
  v1::CancelOperationRequest cancel;
  cancel.set_id(accepted->id());
  ASSERT_TRUE(cluster.control().CancelOperation(cancel).ok());
  const v1::Operation operation = cluster.Finish(accepted);
  EXPECT_EQ(operation.error_code(), static_cast<int>(absl::StatusCode::kCancelled));
  EXPECT_THAT(operation.error(), HasSubstr("was cancelled"));
  EXPECT_THAT(cluster.control().Status().engines(), IsEmpty());
  EXPECT_EQ(cluster.control().CancelOperation(cancel).status().code(),
            absl::StatusCode::kFailedPrecondition);
}

TEST(Control, Create_TwoClientsAtOnce_DoNotWaitForEachOther) {
  FakeCluster cluster(4);
  absl::Notification release;
  cluster.SetScript([&](FakeWorker& worker, const v1::Command& command) {
    if (command.has_form_engine() && worker.rank() < 2) release.WaitForNotification();
    return absl::OkStatus();
  });
  const auto slow = cluster.control().CreateEngine(FakeCluster::CreateRequest("slow", {0, 1}));
  ASSERT_TRUE(cluster.AwaitCount("0 FormEngine", 1));
  cluster.MustCreate("quick", {2, 3});
  EXPECT_EQ(cluster.control().CreateEngine(FakeCluster::CreateRequest("slow", {2})).status().code(),
            absl::StatusCode::kAlreadyExists);
  release.Notify();
  EXPECT_EQ(cluster.Finish(slow).error(), "");
}

TEST(Control, Train_StreamsOneRecordAStep) {
  FakeCluster cluster(2);
  cluster.MustCreate("actor", {0, 1});
  Training training(cluster, cluster.TrainRequest("actor", 3));
  EXPECT_TRUE(training.Join().ok());
  EXPECT_EQ(training.steps(), (std::vector<int64_t>{1, 2, 3}));
  const v1::Engine engine = cluster.Describe("actor");
  EXPECT_EQ(engine.step(), 3);
  EXPECT_EQ(engine.data_position(), 3);
  EXPECT_EQ(engine.weights_version(), 4);
  EXPECT_EQ(cluster.Count("0 CheckTraining"), 1);
}

TEST(Control, Train_DataRefused_LeavesTheEngineReady) {
  FakeCluster cluster(2);
  cluster.MustCreate("actor", {0, 1});
  cluster.SetScript([](FakeWorker& worker, const v1::Command& command) {
    return command.has_check_training() ? Fails(absl::StatusCode::kInvalidArgument, "--data: odd")
                                        : absl::OkStatus();
  });
  Training training(cluster, cluster.TrainRequest("actor", 3));
  EXPECT_THAT(training.Join().message(), HasSubstr("--data: odd"));
  EXPECT_EQ(cluster.Describe("actor").state(), v1::ENGINE_STATE_READY);
  EXPECT_EQ(cluster.Count("0 TrainStep"), 0);
}

TEST(Control, Train_ClientGone_EndsAfterTheStepAndKeepsTheEngine) {
  FakeCluster cluster(2);
  cluster.MustCreate("actor", {0, 1});
  absl::Notification release;
  cluster.SetScript([&](FakeWorker& worker, const v1::Command& command) {
    if (command.has_train_step()) release.WaitForNotification();
    return absl::OkStatus();
  });
  Training training(cluster, cluster.TrainRequest("actor", 1000));
  ASSERT_TRUE(cluster.AwaitCount("0 TrainStep", 1));
  training.ClientGoesAway();
  release.Notify();
  EXPECT_EQ(training.Join().code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(training.steps(), (std::vector<int64_t>{1}));
  EXPECT_EQ(cluster.Describe("actor").state(), v1::ENGINE_STATE_READY);
  EXPECT_EQ(cluster.Describe("actor").step(), 1);
}

TEST(Control, Train_StepFails_FailsTheEngineAndFreesItsRanks) {
  FakeCluster cluster(2);
  cluster.MustCreate("actor", {0, 1});
  cluster.SetScript([](FakeWorker& worker, const v1::Command& command) {
    return command.has_train_step() ? Fails(absl::StatusCode::kAborted, "ranks disagree")
                                    : absl::OkStatus();
  });
  Training training(cluster, cluster.TrainRequest("actor", 3));
  const absl::Status status = training.Join();
  EXPECT_EQ(status.code(), absl::StatusCode::kAborted);
  EXPECT_EQ(cluster.Describe("actor").state(), v1::ENGINE_STATE_FAILED);
  EXPECT_THAT(cluster.Describe("actor").error(), HasSubstr("ranks disagree"));
  EXPECT_TRUE(cluster.AwaitCount("0 DropEngine", 1));
  EXPECT_TRUE(cluster.AwaitCount("1 DropEngine", 1));
  Training again(cluster, cluster.TrainRequest("actor", 1));
  EXPECT_EQ(again.Join().code(), absl::StatusCode::kFailedPrecondition);
}

TEST(Control, Train_RankDies_FailsItsEnginesOnly) {
  FakeCluster cluster(4);
  cluster.MustCreate("actor", {0, 1});
  cluster.MustCreate("other", {2, 3});
  std::atomic<bool> armed{true};
  cluster.SetScript([&](FakeWorker& worker, const v1::Command& command) {
    if (!command.has_train_step() || worker.rank() > 1 || !armed) return absl::OkStatus();
    return worker.rank() == 1 ? worker.AwaitDeath() : worker.AwaitAbort(command.engine_uid());
  });
  Training training(cluster, cluster.TrainRequest("actor", 3));
  ASSERT_TRUE(cluster.AwaitCount("1 TrainStep", 1));
  cluster.Kill(1);
  EXPECT_EQ(cluster.Describe("actor").state(), v1::ENGINE_STATE_FAILED);  // at once
  EXPECT_EQ(cluster.Describe("actor").error(), "rank 1 (pid 1001) was killed by SIGKILL");
  const absl::Status status = training.Join();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(status.message(), "engine actor: rank 1 (pid 1001) was killed by SIGKILL");
  ASSERT_TRUE(DetailOf(status).has_value());
  EXPECT_EQ(DetailOf(status)->reason(), v1::ERROR_REASON_RANK_LOST);

  EXPECT_EQ(cluster.Describe("other").state(), v1::ENGINE_STATE_READY);
  armed = false;
  Training other(cluster, cluster.TrainRequest("other", 2));
  EXPECT_TRUE(other.Join().ok());
  cluster.MustCreate("next", {0});  // the survivor serves at once
  cluster.Restart(1);
  EXPECT_EQ(cluster.Finish(cluster.control().DeleteEngine(DeleteRequest("actor"))).error(), "");
  cluster.MustCreate("actor", {0, 1});
}

TEST(Control, Train_EnginesThatShareRanks_TakeTurns) {
  FakeCluster cluster(3);
  cluster.MustCreate("a", {0, 1});
  cluster.MustCreate("b", {1, 2});
  Training a(cluster, cluster.TrainRequest("a", 60));
  Training b(cluster, cluster.TrainRequest("b", 60));
  EXPECT_TRUE(a.Join().ok());
  EXPECT_TRUE(b.Join().ok());
  EXPECT_FALSE(cluster.overlapped());
}

TEST(Control, Train_SecondOneOnTheEngine_WaitsForTheFirst) {
  FakeCluster cluster(1);
  cluster.MustCreate("a", {0});
  absl::Notification release;
  cluster.SetScript([&](FakeWorker& worker, const v1::Command& command) {
    if (command.has_train_step()) release.WaitForNotification();
    return absl::OkStatus();
  });
  Training first(cluster, cluster.TrainRequest("a", 2));
  ASSERT_TRUE(cluster.AwaitCount("0 TrainStep", 1));
  Training second(cluster, cluster.TrainRequest("a", 1));
  release.Notify();
  EXPECT_TRUE(first.Join().ok());
  EXPECT_TRUE(second.Join().ok());
  EXPECT_EQ(first.steps(), (std::vector<int64_t>{1, 2}));
  EXPECT_EQ(second.steps(), (std::vector<int64_t>{3}));
}

TEST(Control, Delete_WhileTraining_EndsTheTrainingAndFreesTheRanks) {
  FakeCluster cluster(2);
  cluster.MustCreate("actor", {0, 1});
  Training training(cluster, cluster.TrainRequest("actor", 1000000000));
  ASSERT_TRUE(training.AwaitSteps(1));
  const auto accepted = cluster.control().DeleteEngine(DeleteRequest("actor"));
  EXPECT_EQ(cluster.control().DeleteEngine(DeleteRequest("actor")).status().code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(cluster.Finish(accepted).error(), "");
  const absl::Status status = training.Join();
  EXPECT_EQ(status.code(), absl::StatusCode::kCancelled);
  EXPECT_THAT(status.message(), HasSubstr("is being deleted"));
  EXPECT_THAT(cluster.control().Status().engines(), IsEmpty());
  EXPECT_THAT(cluster.Held(0), IsEmpty());
  EXPECT_EQ(cluster.Count("0 Abort"), 0);  // the step ended by itself
}

TEST(Control, Delete_StepHangs_IsAborted) {
  FakeCluster cluster(2);
  cluster.MustCreate("actor", {0, 1});
  cluster.SetScript([](FakeWorker& worker, const v1::Command& command) {
    return command.has_train_step() ? worker.AwaitAbort(command.engine_uid()) : absl::OkStatus();
  });
  Training training(cluster, cluster.TrainRequest("actor", 5));
  ASSERT_TRUE(cluster.AwaitCount("1 TrainStep", 1));
  EXPECT_EQ(cluster.Finish(cluster.control().DeleteEngine(DeleteRequest("actor"))).error(), "");
  EXPECT_EQ(training.Join().code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(cluster.Count("0 Abort"), 1);
  EXPECT_EQ(cluster.Count("0 Kill"), 0);
}

TEST(Control, Delete_WorkerIsStuck_IsKilled) {
  FakeCluster cluster(2);
  cluster.MustCreate("actor", {0, 1});
  cluster.SetScript([](FakeWorker& worker, const v1::Command& command) {
    if (!command.has_train_step()) return absl::OkStatus();
    return worker.rank() == 0 ? worker.AwaitDeath() : worker.AwaitAbort(command.engine_uid());
  });
  Training training(cluster, cluster.TrainRequest("actor", 5));
  ASSERT_TRUE(cluster.AwaitCount("1 TrainStep", 1));
  EXPECT_EQ(cluster.Finish(cluster.control().DeleteEngine(DeleteRequest("actor"))).error(), "");
  EXPECT_FALSE(training.Join().ok());
  EXPECT_EQ(cluster.Count("0 Kill"), 1);
  EXPECT_EQ(cluster.Count("1 Kill"), 0);
  EXPECT_THAT(cluster.control().Status().engines(), IsEmpty());
}

TEST(Control, Delete_WhileForming_EndsTheCreate) {
  FakeCluster cluster(2);
  cluster.SetScript([](FakeWorker& worker, const v1::Command& command) {
    return command.has_form_engine() ? worker.AwaitAbort(command.engine_uid()) : absl::OkStatus();
  });
  const auto create = cluster.control().CreateEngine(FakeCluster::CreateRequest("actor", {0, 1}));
  ASSERT_TRUE(cluster.AwaitCount("1 FormEngine", 1));
  EXPECT_EQ(cluster.Finish(cluster.control().DeleteEngine(DeleteRequest("actor"))).error(), "");
  EXPECT_THAT(cluster.Finish(create).error(), HasSubstr("is being deleted"));
  EXPECT_THAT(cluster.control().Status().engines(), IsEmpty());
  EXPECT_THAT(cluster.Held(1), IsEmpty());
}

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
      EXPECT_EQ(cluster.Count(absl::StrCat(rank, " Abort")), 0);  // the trainer's own group lives
    }
    cluster.SetScript(nullptr);
    Training training(cluster, cluster.TrainRequest("actor", 1));
    EXPECT_TRUE(training.Join().ok());
  }
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

TEST(Control, Sync_WrongPairs_AreRefused) {
  FakeCluster cluster(3);
  cluster.MustCreate("actor", {0});
  cluster.MustCreate("rollout", {1}, v1::ROLE_INFER);
  v1::CreateEngineRequest other = FakeCluster::CreateRequest("small", {2}, v1::ROLE_INFER);
  other.mutable_spec()->set_model("mlp:in=4,hidden=4,layers=2,out=4");
  ASSERT_EQ(cluster.Finish(cluster.control().CreateEngine(other)).error(), "");
  const auto error = [&](const std::string& source, const std::string& destination) {
    return cluster.Finish(cluster.control().SyncEngine(SyncRequest(source, destination))).error();
  };
  EXPECT_THAT(error("rollout", "actor"), HasSubstr("rollout is an inference engine"));
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

TEST(Control, Export_WriterFails_KeepsTheEngine) {
  FakeCluster cluster(2);
  cluster.MustCreate("actor", {0, 1});
  v1::ExportEngineRequest request;
  request.set_name("actor");
  request.set_directory(cluster.TrainRequest("actor", 1).data() + ".out");
  EXPECT_EQ(cluster.Finish(cluster.control().ExportEngine(request)).bytes_moved(), 7);
  cluster.SetScript([](FakeWorker& worker, const v1::Command& command) {
    return command.has_export_engine() ? Fails(absl::StatusCode::kResourceExhausted, "disk full")
                                       : absl::OkStatus();
  });
  EXPECT_THAT(cluster.Finish(cluster.control().ExportEngine(request)).error(),
              HasSubstr("disk full"));
  EXPECT_EQ(cluster.Describe("actor").state(), v1::ENGINE_STATE_READY);
}

TEST(Control, Generate_RowsAreDealtAndComeBackInOrder) {
  FakeCluster cluster(3);
  cluster.MustCreate("rollout", {0, 1, 2}, v1::ROLE_INFER);
  v1::GenerateRequest request;
  request.set_name("rollout");
  request.set_max_tokens(8);
  request.set_top_p(1);
  for (int i = 0; i < 2; ++i) request.add_prompts()->add_tokens(5);
  std::vector<v1::GenerateResponse> responses;
  const absl::Status status = cluster.control().Generate(request, std::make_shared<Cancellation>(),
                                                         [&](const v1::GenerateResponse& response) {
                                                           responses.push_back(response);
                                                           return true;
                                                         });
  ASSERT_TRUE(status.ok()) << status;
  ASSERT_FALSE(responses.empty());
  const v1::GenerateResponse& last = responses.back();
  EXPECT_TRUE(last.done());
  EXPECT_EQ(last.rows_done(), 2);
  EXPECT_EQ(last.tokens_done(), 6);
  ASSERT_EQ(last.outputs_size(), 2);
  EXPECT_THAT(last.outputs(0).tokens(), ElementsAre(3, 2, 1));
  EXPECT_THAT(last.outputs(1).tokens(), ElementsAre(103, 102, 101));
  EXPECT_EQ(last.outputs(1).weights_version(), 4);
  EXPECT_EQ(last.outputs(1).finish_reason(), v1::FINISH_REASON_STOP);
  EXPECT_EQ(cluster.Count("0 StartGeneration"), 0);  // floor(0*2/3) = floor(1*2/3): no row
  EXPECT_EQ(cluster.Count("1 StartGeneration"), 1);
  EXPECT_EQ(cluster.Count("2 StartGeneration"), 1);
  EXPECT_EQ(cluster.Count("2 EndGeneration"), 1);
  for (size_t i = 0; i + 1 < responses.size(); ++i) EXPECT_THAT(responses[i].outputs(), IsEmpty());
}

TEST(Control, Generate_ClientGone_StopsWithinAToken) {
  FakeCluster cluster(1);
  cluster.MustCreate("rollout", {0}, v1::ROLE_INFER);
  v1::GenerateRequest request;
  request.set_name("rollout");
  request.set_max_tokens(8);
  request.add_prompts()->add_tokens(5);
  auto cancellation = std::make_shared<Cancellation>();
  cluster.SetScript([&](FakeWorker& worker, const v1::Command& command) {
    if (command.has_decode_token()) cancellation->Cancel(CancelledError("the client went away"));
    return absl::OkStatus();
  });
  EXPECT_EQ(cluster.control()
                .Generate(request, cancellation, [](const v1::GenerateResponse&) { return true; })
                .code(),
            absl::StatusCode::kCancelled);
  EXPECT_EQ(cluster.Count("0 DecodeToken"), 1);
  EXPECT_EQ(cluster.Count("0 EndGeneration"), 1);
  EXPECT_EQ(cluster.Describe("rollout").state(), v1::ENGINE_STATE_READY);
}

TEST(Control, Roles_WrongEngine_IsRefused) {
  FakeCluster cluster(2);
  cluster.MustCreate("actor", {0});
  cluster.MustCreate("rollout", {1}, v1::ROLE_INFER);
  Training training(cluster, cluster.TrainRequest("rollout", 1));
  EXPECT_EQ(training.Join().code(), absl::StatusCode::kFailedPrecondition);
  v1::GenerateRequest generate;
  generate.set_name("actor");
  EXPECT_EQ(cluster.control()
                .Generate(generate, std::make_shared<Cancellation>(),
                          [](const v1::GenerateResponse&) { return true; })
                .code(),
            absl::StatusCode::kUnimplemented);
  v1::ExportEngineRequest request;
  request.set_name("rollout");
  EXPECT_EQ(cluster.control().ExportEngine(request).status().code(),
            absl::StatusCode::kUnimplemented);
  EXPECT_THAT(
      cluster.Finish(cluster.control().RelayoutEngine(RelayoutRequest("rollout", {0}))).error(),
      HasSubstr("inference engine"));
}

TEST(Control, RequestId_SameRequest_GivesTheSameOperation) {
  FakeCluster cluster(2);
  v1::CreateEngineRequest request = FakeCluster::CreateRequest("actor", {0});
  request.set_request_id("r1");
  const auto first = cluster.control().CreateEngine(request);
  const auto second = cluster.control().CreateEngine(request);
  ASSERT_TRUE(first.ok());
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_EQ(first->id(), second->id());
  EXPECT_EQ(cluster.Finish(first).error(), "");
  request.mutable_spec()->set_seed(7);
  EXPECT_EQ(cluster.control().CreateEngine(request).status().code(),
            absl::StatusCode::kAlreadyExists);
  v1::DeleteEngineRequest erase = DeleteRequest("actor");
  erase.set_request_id("r1");
  EXPECT_EQ(cluster.control().DeleteEngine(erase).status().code(),
            absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(cluster.Count("0 FormEngine"), 1);
}

TEST(Control, RequestId_OfAStream_IsNotRunTwice) {
  FakeCluster cluster(1);
  cluster.MustCreate("actor", {0});
  v1::TrainRequest request = cluster.TrainRequest("actor", 1);
  request.set_request_id("t1");
  Training first(cluster, request);
  EXPECT_TRUE(first.Join().ok());
  Training second(cluster, request);
  EXPECT_EQ(second.Join().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(cluster.Describe("actor").step(), 1);
}

TEST(Control, Shutdown_FinishesTheStepAndRefusesWhatComesAfter) {
  FakeCluster cluster(1);
  cluster.MustCreate("actor", {0});
  absl::Notification release;
  cluster.SetScript([&](FakeWorker& worker, const v1::Command& command) {
    if (command.has_train_step()) release.WaitForNotification();
    return absl::OkStatus();
  });
  // As the service runs it: on one of the control plane's own threads.
  std::promise<absl::Status> outcome;
  ASSERT_TRUE(cluster.control().StartTask([&] {
    outcome.set_value(cluster.control().Train(cluster.TrainRequest("actor", 1000),
                                              std::make_shared<Cancellation>(),
                                              [](const v1::TrainRecord&) { return true; }));
  }));
  ASSERT_TRUE(cluster.AwaitCount("0 TrainStep", 1));
  EXPECT_FALSE(cluster.control().Shutdown(absl::Milliseconds(50)));  // the step still runs
  release.Notify();
  EXPECT_TRUE(cluster.control().Shutdown(kPatience));
  EXPECT_THAT(outcome.get_future().get().message(), HasSubstr("the daemon is stopping"));
  EXPECT_EQ(cluster.Describe("actor").step(), 1);
  EXPECT_EQ(cluster.control().CreateEngine(FakeCluster::CreateRequest("x", {0})).status().code(),
            absl::StatusCode::kUnavailable);
  EXPECT_THAT(cluster.control().Status().engines(), SizeIs(1));
}

TEST(Control, Trace_IsAskedOfTheLead) {
  FakeCluster cluster(2);
  cluster.MustCreate("actor", {1, 0});
  const auto trace = [&](const std::string& name, bool flight) {
    v1::TraceEngineRequest request;
    request.set_name(name);
    request.set_flight(flight);
    std::promise<absl::StatusOr<v1::EngineTrace>> answer;
    cluster.control().TraceEngine(request, kPatience, [&](absl::StatusOr<v1::EngineTrace> result) {
      answer.set_value(std::move(result));
    });
    return answer.get_future().get();
  };
  const auto good = trace("actor", false);
  ASSERT_TRUE(good.ok()) << good.status();
  EXPECT_EQ(good->engine(), "actor");
  EXPECT_EQ(good->rank(), 1);
  EXPECT_EQ(trace("actor", true).status().code(), absl::StatusCode::kUnimplemented);
  EXPECT_EQ(trace("nobody", false).status().code(), absl::StatusCode::kNotFound);
  cluster.Kill(1);
  EXPECT_FALSE(trace("actor", false).ok());
}

TEST(RankCommands, ChooseError_TheMostTellingOneWins) {
  const absl::Status timeout = absl::DeadlineExceededError("late");
  const absl::Status cause = absl::AbortedError("disagree");
  const absl::Status lost = RankLostError(2, "rank 2 died");
  const absl::Status heard = RankLostError(2, "rank 1 heard that rank 2 died");
  EXPECT_TRUE(ChooseError({{0, absl::OkStatus()}, {1, absl::OkStatus()}}).ok());
  EXPECT_TRUE(ChooseError({}).ok());
  EXPECT_EQ(ChooseError({{0, timeout}, {1, cause}}), cause);
  EXPECT_EQ(ChooseError({{0, CancelledError("x")}, {1, timeout}}), timeout);
  EXPECT_EQ(ChooseError({{0, cause}, {1, heard}, {2, lost}}), lost);
  EXPECT_EQ(ChooseError({{0, absl::InternalError("first")}, {1, cause}}).message(), "first");
}

}  // namespace
}  // namespace regroup
