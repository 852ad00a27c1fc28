#include "daemon/control/control.h"

#include <future>

#include "absl/synchronization/notification.h"
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

TEST(Control, Create_RanksNeedMoreThanTheirNodeHas_IsRefusedBeforeForming) {
  FakeCluster cluster(3);
  cluster.SetEdit([](int rank, v1::CommandResult* result) {
    if (!result->has_prepare_engine()) return;
    result->mutable_prepare_engine()->set_needed_bytes(400);
    result->mutable_prepare_engine()->set_available_bytes(1000 + rank);
  });
  const v1::Operation operation = cluster.Finish(
      cluster.control().CreateEngine(FakeCluster::CreateRequest("actor", {0, 1, 2})));
  EXPECT_EQ(operation.error_code(), static_cast<int>(absl::StatusCode::kResourceExhausted));
  EXPECT_EQ(operation.error_detail().reason(), v1::ERROR_REASON_MEMORY);
  EXPECT_THAT(operation.error(), HasSubstr("3 ranks need 1.2 kB"));
  EXPECT_EQ(cluster.Count("0 FormEngine"), 0);
  EXPECT_THAT(cluster.Held(0), IsEmpty());
  cluster.MustCreate("actor", {0, 1});
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
  cancel.set_request_id(FakeCluster::NewRequestId());
  cancel.set_id(accepted->id());
  ASSERT_TRUE(cluster.control().CancelOperation(cancel).ok());
  const v1::Operation operation = cluster.Finish(accepted);
  EXPECT_EQ(operation.error_code(), static_cast<int>(absl::StatusCode::kCancelled));
  EXPECT_THAT(operation.error(), HasSubstr("was cancelled"));
  EXPECT_THAT(cluster.control().Status().engines(), IsEmpty());
  cancel.set_request_id(FakeCluster::NewRequestId());
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
  // An abort that comes late on a busy machine is no reason to kill.
  FakeCluster cluster(2, [](OperationTiming& timing) { timing.delete_abort = absl::Seconds(20); });
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

TEST(Control, Command_NotAnsweredInTime_ItsWorkerIsKilled) {
  FakeCluster cluster(
      2, [](OperationTiming& timing) { timing.commands.command = absl::Milliseconds(500); });
  cluster.SetScript([](FakeWorker& worker, const v1::Command& command) {
    return command.has_prepare_engine() && worker.rank() == 1 ? worker.AwaitDeath()
                                                              : absl::OkStatus();
  });
  const v1::Operation operation =
      cluster.Finish(cluster.control().CreateEngine(FakeCluster::CreateRequest("actor", {0, 1})));
  EXPECT_EQ(operation.error_detail().reason(), v1::ERROR_REASON_RANK_LOST);
  EXPECT_THAT(operation.error_detail().ranks(), ElementsAre(1));
  EXPECT_EQ(cluster.Count("1 Kill"), 1);
  EXPECT_EQ(cluster.Count("0 Kill"), 0);
}

// It stands still between its commands, so that no command of its own is late.
TEST(Control, Create_LeadOpensNoMeetingPlace_IsKilledAndNamed) {
  FakeCluster cluster(
      2, [](OperationTiming& timing) { timing.commands.rendezvous_margin = absl::ZeroDuration(); });
  cluster.HangRendezvousOn(1);
  v1::CreateEngineRequest request = FakeCluster::CreateRequest("actor", {1, 0});
  request.mutable_spec()->mutable_timeout()->set_seconds(1);
  const v1::Operation operation = cluster.Finish(cluster.control().CreateEngine(request));
  EXPECT_EQ(operation.error_code(), static_cast<int>(absl::StatusCode::kUnavailable));
  EXPECT_EQ(operation.phase(), "form");
  EXPECT_EQ(operation.error_detail().reason(), v1::ERROR_REASON_RANK_LOST);
  EXPECT_THAT(operation.error_detail().ranks(), ElementsAre(1));
  EXPECT_THAT(operation.error(), HasSubstr("rank 1 (pid 1001)"));
  EXPECT_EQ(cluster.Count("1 Kill"), 1);
  EXPECT_EQ(cluster.Count("0 Kill"), 0);
  EXPECT_THAT(cluster.control().Status().engines(), IsEmpty());
  EXPECT_THAT(cluster.Held(0), IsEmpty());
  cluster.MustCreate("actor", {0});
}

TEST(Control, Roles_WrongEngine_IsRefused) {
  FakeCluster cluster(2);
  cluster.MustCreate("actor", {0});
  cluster.MustCreate("rollout", {1}, v1::ROLE_INFER);
  Training training(cluster, cluster.TrainRequest("rollout", 1));
  EXPECT_EQ(training.Join().code(), absl::StatusCode::kFailedPrecondition);
  v1::ExportEngineRequest request;
  request.set_request_id(FakeCluster::NewRequestId());
  request.set_name("rollout");
  EXPECT_EQ(cluster.control().ExportEngine(request).status().code(),
            absl::StatusCode::kUnimplemented);
  EXPECT_EQ(cluster.control().RelayoutEngine(RelayoutRequest("rollout", {0})).status().code(),
            absl::StatusCode::kFailedPrecondition);
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

TEST(Control, RequestId_Missing_IsRefusedByEveryMutation) {
  FakeCluster cluster(1);
  cluster.MustCreate("actor", {0});
  v1::CreateEngineRequest create = FakeCluster::CreateRequest("other", {0});
  create.clear_request_id();
  v1::DeleteEngineRequest erase = DeleteRequest("actor");
  erase.clear_request_id();
  v1::TrainRequest train = cluster.TrainRequest("actor", 1);
  train.clear_request_id();
  Training training(cluster, train);
  for (const absl::Status& status :
       {cluster.control().CreateEngine(create).status(),
        cluster.control().DeleteEngine(erase).status(), training.Join()}) {
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(status.message(), HasSubstr("request_id"));
  }
  EXPECT_EQ(cluster.Describe("actor").step(), 0);
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
  ASSERT_TRUE(cluster.control()
                  .StartTask([&] {
                    outcome.set_value(cluster.control().Train(
                        cluster.TrainRequest("actor", 1000), std::make_shared<Cancellation>(),
                        [](const std::string&) {}, [](const v1::TrainRecord&) { return true; }));
                  })
                  .ok());
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
  const absl::Status timeout = absl::DeadlineExceededError("rank 1 did not come");
  const absl::Status closed = absl::UnavailableError("connection closed");
  const absl::Status other = absl::InternalError("other");
  const absl::Status lost = RankLostError(2, "rank 2 died");
  const absl::Status heard = RankLostError(2, "rank 1 heard that rank 2 died");
  EXPECT_TRUE(ChooseError({{0, absl::OkStatus()}, {1, absl::OkStatus()}}).ok());
  EXPECT_TRUE(ChooseError({}).ok());
  EXPECT_EQ(ChooseError({{0, closed}, {1, timeout}}), timeout);
  EXPECT_EQ(ChooseError({{0, other}, {1, timeout}}), other);
  EXPECT_EQ(ChooseError({{0, CancelledError("x")}, {1, other}}), other);
  EXPECT_EQ(ChooseError({{0, timeout}, {1, heard}, {2, lost}}), lost);
  EXPECT_EQ(ChooseError({{0, other}, {1, absl::AbortedError("second")}}), other);
}

}  // namespace
}  // namespace regroup
