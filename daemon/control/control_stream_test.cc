// Control: train, generate and export.
#include <atomic>
#include <thread>

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

TEST(Control, Train_StepFailsButNotTheGroup_KeepsTheEngine) {
  FakeCluster cluster(2);
  cluster.MustCreate("actor", {0, 1});
  cluster.SetScript([](FakeWorker& worker, const v1::Command& command) {
    return command.has_train_step() ? Fails(absl::StatusCode::kDataLoss, "the file shrank")
                                    : absl::OkStatus();
  });
  Training training(cluster, cluster.TrainRequest("actor", 3));
  EXPECT_EQ(training.Join().code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(cluster.Describe("actor").state(), v1::ENGINE_STATE_READY);
  EXPECT_EQ(cluster.Count("0 Abort"), 0);
  cluster.SetScript(nullptr);
  Training more(cluster, cluster.TrainRequest("actor", 1));
  EXPECT_TRUE(more.Join().ok());
}

TEST(Control, Train_OneRankAnswersWithoutDetail_FailsTheEngine) {
  FakeCluster cluster(2);
  cluster.MustCreate("actor", {0, 1});
  cluster.SetScript([](FakeWorker& worker, const v1::Command& command) {
    return command.has_train_step() ? absl::InternalError("not of the worker") : absl::OkStatus();
  });
  Training training(cluster, cluster.TrainRequest("actor", 1));
  EXPECT_FALSE(training.Join().ok());
  EXPECT_EQ(cluster.Describe("actor").state(), v1::ENGINE_STATE_FAILED);
}

TEST(Control, Train_RanksSeeOtherFiles_IsRefusedNamingThem) {
  FakeCluster cluster(3);
  cluster.MustCreate("actor", {2, 0, 1});
  cluster.SetEdit([](int rank, v1::CommandResult* result) {
    result->mutable_check_training()->set_digest(rank == 1 ? "b" : "a");
  });
  const v1::TrainRequest request = cluster.TrainRequest("actor", 1);
  Training training(cluster, request);
  const absl::Status status = training.Join();
  EXPECT_EQ(status.code(), absl::StatusCode::kAborted);
  EXPECT_THAT(status.message(), HasSubstr("--data=" + request.data()));
  EXPECT_THAT(status.message(), HasSubstr("1 see another file than rank 2"));
  EXPECT_THAT(DetailOf(status)->ranks(), ElementsAre(1));
  EXPECT_EQ(cluster.Count("0 TrainStep"), 0);
  EXPECT_EQ(cluster.Describe("actor").state(), v1::ENGINE_STATE_READY);
}

TEST(Control, Train_StepBreaksTheGroup_FailsTheEngineAndFreesItsRanks) {
  FakeCluster cluster(2);
  cluster.MustCreate("actor", {0, 1});
  cluster.SetScript([](FakeWorker& worker, const v1::Command& command) {
    return command.has_train_step() ? Breaks(absl::StatusCode::kAborted, "ranks disagree")
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
  EXPECT_FALSE(cluster.control().Status().ranks(1).has_ended());
  const int64_t before = absl::ToUnixSeconds(absl::Now());
  cluster.Kill(1);
  EXPECT_GE(cluster.control().Status().ranks(1).ended().seconds(), before);
  EXPECT_FALSE(cluster.control().Status().ranks(0).has_ended());
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

TEST(Control, Export_WriterFails_KeepsTheEngine) {
  FakeCluster cluster(2);
  cluster.MustCreate("actor", {0, 1});
  v1::ExportEngineRequest request;
  request.set_request_id(FakeCluster::NewRequestId());
  request.set_name("actor");
  request.set_directory(cluster.TrainRequest("actor", 1).data() + ".out");
  EXPECT_EQ(cluster.Finish(cluster.control().ExportEngine(request)).bytes_moved(), 7);
  request.set_request_id(FakeCluster::NewRequestId());
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
  request.set_request_id(FakeCluster::NewRequestId());
  request.set_name("rollout");
  request.set_max_tokens(8);
  request.set_top_p(1);
  for (int i = 0; i < 2; ++i) request.add_prompts()->add_tokens(5);
  std::vector<v1::GenerateResponse> responses;
  const absl::Status status = cluster.control().Generate(
      request, std::make_shared<Cancellation>(), [](const std::string&) {},
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
  request.set_request_id(FakeCluster::NewRequestId());
  request.set_name("rollout");
  request.set_max_tokens(8);
  request.add_prompts()->add_tokens(5);
  auto cancellation = std::make_shared<Cancellation>();
  cluster.SetScript([&](FakeWorker& worker, const v1::Command& command) {
    if (command.has_decode_token()) {
      cancellation->Cancel(CancelledError("the client went away"), CancelledBy::kClient);
    }
    return absl::OkStatus();
  });
  bool answered = false;
  EXPECT_EQ(cluster.control()
                .Generate(
                    request, cancellation, [](const std::string&) {},
                    [&](const v1::GenerateResponse& response) {
                      answered = answered || response.done();
                      return true;
                    })
                .code(),
            absl::StatusCode::kCancelled);
  EXPECT_FALSE(answered);
  EXPECT_EQ(cluster.Count("0 DecodeToken"), 1);
  EXPECT_EQ(cluster.Count("0 EndGeneration"), 1);
  EXPECT_EQ(cluster.Describe("rollout").state(), v1::ENGINE_STATE_READY);
}

TEST(Control, Generate_CancelledOrDeleted_AnswersWithWhatThereIs) {
  for (const bool by_hand : {true, false}) {
    FakeCluster cluster(1);
    cluster.MustCreate("rollout", {0}, v1::ROLE_INFER);
    v1::GenerateRequest request;
    request.set_request_id(FakeCluster::NewRequestId());
    request.set_name("rollout");
    request.set_max_tokens(8);
    request.add_prompts()->add_tokens(5);
    std::string id;
    absl::Notification release;
    cluster.SetScript([&](FakeWorker& worker, const v1::Command& command) {
      if (command.has_decode_token()) release.WaitForNotification();
      return absl::OkStatus();
    });
    v1::GenerateResponse last;
    absl::Status status;
    std::thread generating([&] {
      status = cluster.control().Generate(
          request, std::make_shared<Cancellation>(), [&](const std::string& given) { id = given; },
          [&](const v1::GenerateResponse& response) {
            last = response;
            return true;
          });
    });
    EXPECT_TRUE(cluster.AwaitCount("0 DecodeToken", 1));
    absl::StatusOr<v1::Operation> erase;
    if (by_hand) {
      v1::CancelOperationRequest cancel;
      cancel.set_request_id(FakeCluster::NewRequestId());
      cancel.set_id(id);
      EXPECT_TRUE(cluster.control().CancelOperation(cancel).ok());
    } else {
      erase = cluster.control().DeleteEngine(DeleteRequest("rollout"));
    }
    release.Notify();
    generating.join();
    EXPECT_TRUE(last.done());
    ASSERT_EQ(last.outputs_size(), 1);
    EXPECT_THAT(last.outputs(0).tokens(), SizeIs(1));
    EXPECT_EQ(last.outputs(0).finish_reason(), v1::FINISH_REASON_CANCELLED);
    EXPECT_EQ(status.code(), by_hand ? absl::StatusCode::kOk : absl::StatusCode::kCancelled);
    EXPECT_EQ(cluster.Count("0 EndGeneration"), 1);
    if (!by_hand) {
      EXPECT_EQ(cluster.Finish(erase).error(), "");
    }
  }
}

v1::GenerateRequest OnePrompt(const std::string& name) {
  v1::GenerateRequest request;
  request.set_request_id(FakeCluster::NewRequestId());
  request.set_name(name);
  request.set_max_tokens(8);
  request.add_prompts()->add_tokens(5);
  return request;
}

absl::Status GenerateOnce(FakeCluster& cluster, const std::string& name) {
  return cluster.control().Generate(
      OnePrompt(name), std::make_shared<Cancellation>(), [](const std::string&) {},
      [](const v1::GenerateResponse&) { return true; });
}

// Ranks without rows gather with the others, as often as these, and not once more.
TEST(Control, Generate_OnATrainer_AsksAllRanksForEachToken) {
  FakeCluster cluster(3);
  cluster.MustCreate("actor", {0, 1, 2});
  EXPECT_TRUE(GenerateOnce(cluster, "actor").ok());
  for (const std::string rank : {"0", "1", "2"}) {
    EXPECT_EQ(cluster.Count(rank + " StartGeneration"), 1);
    EXPECT_EQ(cluster.Count(rank + " DecodeToken"), 3);
    EXPECT_EQ(cluster.Count(rank + " EndGeneration"), 1);
  }
  Training training(cluster, cluster.TrainRequest("actor", 1));
  EXPECT_TRUE(training.Join().ok());
}

TEST(Control, Generate_OnATrainerFailsButNotTheGroup_KeepsTheEngine) {
  FakeCluster cluster(2);
  cluster.MustCreate("actor", {0, 1});
  cluster.SetScript([](FakeWorker& worker, const v1::Command& command) {
    return command.has_decode_token() && worker.rank() == 1
               ? Fails(absl::StatusCode::kFailedPrecondition, "no finite logit")
               : absl::OkStatus();
  });
  EXPECT_THAT(GenerateOnce(cluster, "actor").message(), HasSubstr("no finite logit"));
  EXPECT_EQ(cluster.Describe("actor").state(), v1::ENGINE_STATE_READY);
  EXPECT_EQ(cluster.Count("0 Abort"), 0);
  EXPECT_EQ(cluster.Count("0 EndGeneration"), 1);
  EXPECT_EQ(cluster.Count("1 EndGeneration"), 1);
}

TEST(Control, Generate_OnATrainerWhoseRankDies_AbortsTheOthersAndFailsTheEngine) {
  FakeCluster cluster(2);
  cluster.MustCreate("actor", {0, 1});
  cluster.SetScript([](FakeWorker& worker, const v1::Command& command) {
    if (!command.has_decode_token()) return absl::OkStatus();
    return worker.rank() == 1 ? worker.AwaitDeath() : worker.AwaitAbort(command.engine_uid());
  });
  absl::Status status;
  std::thread generating([&] { status = GenerateOnce(cluster, "actor"); });
  EXPECT_TRUE(cluster.AwaitCount("1 DecodeToken", 1));
  cluster.Kill(1);
  generating.join();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  EXPECT_EQ(status.message(), "engine actor: rank 1 (pid 1001) was killed by SIGKILL");
  EXPECT_EQ(cluster.Describe("actor").state(), v1::ENGINE_STATE_FAILED);
  EXPECT_TRUE(cluster.AwaitCount("0 DropEngine", 1));
}

TEST(Control, Generate_OnATrainerThatBreaks_FailsTheEngine) {
  FakeCluster cluster(2);
  cluster.MustCreate("actor", {0, 1});
  cluster.SetScript([](FakeWorker& worker, const v1::Command& command) {
    return command.has_decode_token() ? Breaks(absl::StatusCode::kAborted, "ranks disagree")
                                      : absl::OkStatus();
  });
  EXPECT_EQ(GenerateOnce(cluster, "actor").code(), absl::StatusCode::kAborted);
  EXPECT_EQ(cluster.Describe("actor").state(), v1::ENGINE_STATE_FAILED);
}

}  // namespace
}  // namespace regroup
