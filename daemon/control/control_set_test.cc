// Control: engine set.
#include "absl/synchronization/notification.h"
#include "daemon/control/control.h"
#include "daemon/control/control_test_util.h"
#include "daemon/control/fake_cluster.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/rpc_status.h"

namespace regroup {
namespace {

using ::testing::HasSubstr;

v1::SetEngineRequest SetRequest(const std::string& name) {
  v1::SetEngineRequest request;
  request.set_request_id(FakeCluster::NewRequestId());
  request.set_name(name);
  return request;
}

TEST(Control, Set_Good_ReachesAllRanksAndStaysOverARelayout) {
  FakeCluster cluster(3);
  cluster.MustCreate("actor", {0, 1});
  std::vector<v1::SetSettings> seen(3);
  v1::EngineSpec moved;
  cluster.SetScript([&](FakeWorker& worker, const v1::Command& command) {
    if (command.has_set_settings()) seen[worker.rank()] = command.set_settings();
    if (command.has_prepare_move() && worker.rank() == 2) moved = command.prepare_move().source();
    return absl::OkStatus();
  });
  v1::SetEngineRequest request = SetRequest("actor");
  request.set_learning_rate(0.025);
  request.mutable_timeout()->set_seconds(90);
  const v1::Operation operation = cluster.Finish(cluster.control().SetEngine(request));
  EXPECT_EQ(operation.error(), "");
  EXPECT_EQ(operation.kind(), "set");
  EXPECT_EQ(operation.detail(), "lr 0.1 -> 0.025, timeout 30s -> 1m30s");
  for (const int rank : {0, 1}) {
    EXPECT_EQ(seen[rank].learning_rate(), 0.025);
    EXPECT_EQ(seen[rank].timeout().seconds(), 90);
    EXPECT_EQ(seen[rank].checks(), v1::CHECK_LEVEL_BASIC);  // as it was
  }
  EXPECT_EQ(cluster.Count("2 SetSettings"), 0);
  request = SetRequest("actor");
  request.set_checks(v1::CHECK_LEVEL_OFF);
  EXPECT_EQ(cluster.Finish(cluster.control().SetEngine(request)).detail(), "checks basic -> off");
  const auto expect_set = [](const v1::EngineSpec& spec) {
    EXPECT_EQ(spec.optimizer().learning_rate(), 0.025);
    EXPECT_EQ(spec.optimizer().name(), "sgd");
    EXPECT_EQ(spec.timeout().seconds(), 90);
    EXPECT_EQ(spec.checks(), v1::CHECK_LEVEL_OFF);
  };
  expect_set(cluster.Describe("actor").spec());
  EXPECT_EQ(
      cluster.Finish(cluster.control().RelayoutEngine(RelayoutRequest("actor", {2, 0}))).error(),
      "");
  expect_set(moved);
  expect_set(cluster.Describe("actor").spec());
}

TEST(Control, Set_Refused_ChangesNothing) {
  FakeCluster cluster(2);
  cluster.MustCreate("actor", {0, 1});
  cluster.MustCreate("rollout", {1}, v1::ROLE_INFER);
  const std::string before = cluster.Describe("actor").DebugString();
  v1::SetEngineRequest request = SetRequest("actor");
  request.set_learning_rate(-1);
  EXPECT_THAT(cluster.control().SetEngine(request).status().message(), HasSubstr("--lr=-1"));
  request = SetRequest("rollout");
  request.set_learning_rate(1);
  EXPECT_THAT(cluster.control().SetEngine(request).status().message(), HasSubstr("for trainers"));
  request = SetRequest("nobody");
  request.set_learning_rate(1);
  EXPECT_EQ(cluster.control().SetEngine(request).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(cluster.Count("0 SetSettings"), 0);
  // A rank that refuses: none has applied it.
  cluster.SetScript([](FakeWorker& worker, const v1::Command& command) {
    return command.has_set_settings() ? Fails(absl::StatusCode::kAborted, "ranks disagree")
                                      : absl::OkStatus();
  });
  request = SetRequest("actor");
  request.set_learning_rate(1);
  EXPECT_THAT(cluster.Finish(cluster.control().SetEngine(request)).error(),
              HasSubstr("ranks disagree"));
  EXPECT_EQ(cluster.Describe("actor").DebugString(), before);
}

TEST(Control, Set_BreaksTheGroup_FailsTheEngine) {
  FakeCluster cluster(2);
  cluster.MustCreate("actor", {0, 1});
  cluster.SetScript([](FakeWorker& worker, const v1::Command& command) {
    return command.has_set_settings() ? Breaks(absl::StatusCode::kUnavailable, "closed")
                                      : absl::OkStatus();
  });
  v1::SetEngineRequest request = SetRequest("actor");
  request.set_checks(v1::CHECK_LEVEL_FULL);
  EXPECT_NE(cluster.Finish(cluster.control().SetEngine(request)).error(), "");
  EXPECT_EQ(cluster.Describe("actor").state(), v1::ENGINE_STATE_FAILED);
}

// It waits for its turn behind what runs.
TEST(Control, Set_WhileATrainRuns_ComesAfterIt) {
  FakeCluster cluster(1);
  cluster.MustCreate("actor", {0});
  absl::Notification release;
  cluster.SetScript([&](FakeWorker& worker, const v1::Command& command) {
    if (command.has_train_step()) release.WaitForNotification();
    return absl::OkStatus();
  });
  Training training(cluster, cluster.TrainRequest("actor", 2));
  ASSERT_TRUE(cluster.AwaitCount("0 TrainStep", 1));
  v1::SetEngineRequest request = SetRequest("actor");
  request.set_learning_rate(0.5);
  const auto accepted = cluster.control().SetEngine(request);
  ASSERT_TRUE(accepted.ok()) << accepted.status();
  EXPECT_FALSE(accepted->done());
  EXPECT_EQ(cluster.Describe("actor").spec().optimizer().learning_rate(), 0.1);
  release.Notify();
  EXPECT_EQ(cluster.Finish(accepted).error(), "");
  EXPECT_TRUE(training.Join().ok());
  EXPECT_EQ(cluster.Count("0 TrainStep"), 2);
  EXPECT_EQ(cluster.Describe("actor").spec().optimizer().learning_rate(), 0.5);
  const std::vector<std::string> log = cluster.Log();
  EXPECT_EQ(log.back(), "0 SetSettings");
}

}  // namespace
}  // namespace regroup
