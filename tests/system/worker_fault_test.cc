// A rank that dies or stands still ends what it took part in, is named, and comes back empty.
// Nobody else notices.
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/system/cli.h"
#include "tests/system/fault_grid.h"
#include "tests/system/fixtures.h"

namespace regroup::harness {
namespace {

using Steps = std::vector<StepRecord>;

// Within which a death has to be known.
constexpr absl::Duration kReported = absl::Seconds(2);
constexpr int64_t kForever = 1000000;

TrainArgs Text(int64_t steps) { return {Data().text.path, steps, 4, kSeq, {}}; }

class WorkerFaultTest : public FixtureTest {
 protected:
  static void SetUpTestSuite() { StartDaemonOnFixtures(4); }

  // Every rank has to be there again before the next test.
  void TearDown() override {
    FixtureTest::TearDown();
    for (int rank = 0; rank < 4; ++rank) EXPECT_TRUE(daemon().WaitForRestart(rank, -1)) << rank;
  }

  static void Create(const std::string& name, const std::string& ranks, Flags flags = {}) {
    for (const std::string& flag : OptimizerFlags(AdamW())) flags.push_back(flag);
    cli().Create(name, ranks, Data().untied.folder, flags);
  }

  static std::unique_ptr<Process> StartTraining(const std::string& name, int64_t steps) {
    auto train = cli().ctl().Start(TrainCommand(name, Text(steps)));
    EXPECT_TRUE(WaitUntil(absl::Seconds(30), [&] { return !train->OutputLines().empty(); }))
        << train->Errors();
    return train;
  }

  static bool WaitForFailure(const std::string& engine, absl::Duration deadline) {
    return WaitUntil(deadline, [&] { return cli().State(engine) == "FAILED"; });
  }

  static void ExpectMentions(const std::string& text, const std::vector<std::string>& words) {
    for (const std::string& word : words) {
      EXPECT_NE(text.find(word), std::string::npos) << "\"" << word << "\" is not in: " << text;
    }
  }

  static void ExpectTrainsLikeTorch(const std::string& engine) {
    ReferenceRun reference(Data().untied, Data().text, AdamW());
    ExpectSteps(cli().Train(engine, Text(3)), reference.Train(3, 4));
  }
};

// Those of the grid that each change has to pass; fault_grid_test has them all.
INSTANTIATE_TEST_SUITE_P(Sample, FaultGridTest,
                         ::testing::Values(FaultCase{"create", "form", SIGKILL, 0},
                                           FaultCase{"relayout", "move", SIGKILL, 2},
                                           FaultCase{"sync", "move", SIGKILL, 0},
                                           FaultCase{"generate", "decode", SIGKILL, 0}),
                         [](const auto& info) { return NameOf(info.param); });

TEST_F(WorkerFaultTest, Kill_IdleRank_FailsItsEnginesAndNobodyElses) {
  Create("hit", "1-2");
  Create("other", "0,3");
  const pid_t pid = daemon().WorkerPid(2);
  ASSERT_GT(pid, 0);
  ASSERT_EQ(kill(pid, SIGKILL), 0);
  ASSERT_TRUE(WaitForFailure("hit", kReported));
  ExpectMentions(cli().Describe("hit").value("error", ""), {"rank 2", "SIGKILL"});
  ExpectMentions(daemon().RankRow(2).value("error", ""), {"rank 2", "SIGKILL", absl::StrCat(pid)});
  EXPECT_EQ(cli().State("other"), "READY");
  ExpectTrainsLikeTorch("other");

  EXPECT_TRUE(daemon().WaitForRestart(2, pid));
  EXPECT_EQ(cli().State("hit"), "FAILED") << "its weights are gone";
  for (const std::vector<std::string>& command : {TrainCommand("hit", Text(1)),
                                                  {"engine", "relayout", "hit", "--ranks=0"},
                                                  {"export", "hit", DataPath("never")}}) {
    const CtlResult refused = cli().ctl().Run(command);
    EXPECT_EQ(refused.exit, 1) << command[0];
    ExpectMentions(refused.errors, {"hit", "rank 2"});
  }
  cli().Delete("hit");
  EXPECT_EQ(daemon().RankRow(2)["engines"].size(), 0u);
  Create("hit", "1-2");
  ExpectTrainsLikeTorch("hit");
}

TEST_F(WorkerFaultTest, Kill_WhileTraining_EndsThatRunAndNoOther) {
  Create("other", "0,3");
  const Steps expected = cli().Train("other", Text(50));
  cli().Delete("other");
  Create("hit", "1-2");
  Create("other", "0,3");
  const pid_t pid = daemon().WorkerPid(1);
  const auto hit = StartTraining("hit", kForever);
  const auto other = StartTraining("other", 50);
  ASSERT_EQ(kill(pid, SIGKILL), 0);
  EXPECT_TRUE(WaitForFailure("hit", kReported));
  const CtlResult result = Collect(*hit, absl::Seconds(5));
  EXPECT_EQ(result.exit, 1);
  ExpectMentions(result.errors, {"rank 1", "SIGKILL"});
  const CtlResult undisturbed = Collect(*other);
  EXPECT_EQ(undisturbed.exit, 0) << undisturbed.errors;
  EXPECT_EQ(ParseSteps(undisturbed), expected);
  // The survivor of the group is as good as new.
  EXPECT_EQ(daemon().RankRow(2).value("state", ""), "READY");
  Create("next", "2-3");
  ExpectTrainsLikeTorch("next");
}

TEST_F(WorkerFaultTest, End_OfAnyKind_IsReportedAsWhatItWas) {
  const std::vector<std::pair<int, std::string>> ends = {
      {SIGSEGV, "SIGSEGV"}, {SIGABRT, "SIGABRT"}, {SIGBUS, "SIGBUS"}};
  std::vector<pid_t> pids;
  for (size_t i = 0; i < ends.size(); ++i) {
    pids.push_back(daemon().WorkerPid(static_cast<int>(i) + 1));
    ASSERT_EQ(kill(pids[i], ends[i].first), 0);
  }
  for (size_t i = 0; i < ends.size(); ++i) {
    const int rank = static_cast<int>(i) + 1;
    EXPECT_TRUE(daemon().WaitForRestart(rank, pids[i]));
    ExpectMentions(daemon().RankRow(rank).value("error", ""),
                   {absl::StrCat("rank ", rank), ends[i].second, absl::StrCat(pids[i])});
  }
}

TEST_F(WorkerFaultTest, KillDeleteCreate_Repeatedly_AlwaysWorks) {
  for (int round = 0; round < 2 && !HasFailure(); ++round) {
    Create("e", "0-1");
    const pid_t pid = daemon().WorkerPid(0);
    ASSERT_EQ(kill(pid, SIGKILL), 0);
    cli().Delete("e");
    Create("e", "0-1");  // waits for the rank
    ExpectTrainsLikeTorch("e");
    cli().Delete("e");
  }
}

// A rank that stands still is as good as dead: to its group once the engine's timeout has passed,
// to everybody else once it has been silent for 10 s, which all of this waits for together.
TEST_F(WorkerFaultTest, Stop_TwoRanks_EndsATrainRunASyncAndADelete) {
  Create("hit", "1-2", {"--timeout=2s"});
  Create("gone", "1-2");
  Create("actor", "0", {"--timeout=2s"});
  cli().Create("rollout", "3", Data().untied.folder, {"--role=infer", "--timeout=2s"});
  cli().Train("actor", Text(1));
  const pid_t pids[] = {daemon().WorkerPid(2), daemon().WorkerPid(3)};
  const auto train = StartTraining("hit", kForever);
  for (const pid_t pid : pids) ASSERT_EQ(kill(pid, SIGSTOP), 0);
  const auto sync = cli().ctl().Start({"engine", "sync", "actor", "rollout"});
  const auto deletion = cli().ctl().Start({"engine", "delete", "gone"});

  const CtlResult trained = Collect(*train, absl::Seconds(30));
  EXPECT_EQ(trained.exit, 1) << trained.output;
  ExpectMentions(trained.errors, {"rank 2"});
  EXPECT_EQ(cli().State("hit"), "FAILED");
  ExpectMentions(cli().Describe("hit").value("error", ""), {"rank 2"});

  // A sync that could not reach every inference rank is no sync, and nobody sees half of one.
  const CtlResult synced = Collect(*sync, absl::Seconds(30));
  EXPECT_EQ(synced.exit, 1) << synced.output;
  ExpectMentions(synced.errors, {"rank 3"});
  EXPECT_EQ(cli().State("actor"), "READY");
  EXPECT_EQ(cli().Train("actor", Text(1))[0].step, 2);

  const CtlResult deleted = Collect(*deletion, absl::Seconds(30));
  EXPECT_EQ(deleted.exit, 0) << deleted.errors;
  EXPECT_EQ(cli().State("gone"), "");

  for (const int i : {0, 1}) EXPECT_TRUE(daemon().WaitForRestart(2 + i, pids[i]));
  const CtlResult generated =
      cli().ctl().Run({"generate", "rollout", "--tokens=1,2", "--max-tokens=2"});
  EXPECT_EQ(generated.exit, 1) << "rank 3 lost its weights: " << generated.output;
  Create("next", "1-3");
  ExpectTrainsLikeTorch("next");
}

// A replaced inference worker never answers with the weights of the file.
TEST_F(WorkerFaultTest, Kill_InferenceRank_GenerateIsRefusedUntilANewEngineIsSynced) {
  Create("actor", "0");
  cli().CreateRollout("rollout", "2-3", Data().untied.folder);
  cli().Train("actor", Text(4));
  cli().Sync("actor", "rollout");
  EXPECT_EQ(cli().Generate("rollout", {{1, 2}}, 1)[0].weights_version, 5);
  const pid_t pid = daemon().WorkerPid(3);
  ASSERT_EQ(kill(pid, SIGKILL), 0);
  const std::vector<std::string> generate = {"generate", "rollout", "--tokens=1,2",
                                             "--max-tokens=1"};
  do {
    const CtlResult result = cli().ctl().Run(generate);
    if (result.exit == 0) {
      EXPECT_EQ(result.rows().back()["outputs"][0]["weightsVersion"], 5);
    } else {
      ExpectMentions(result.errors, {"rollout"});
    }
  } while (cli().State("rollout") != "FAILED" && !HasFailure());
  EXPECT_TRUE(daemon().WaitForRestart(3, pid));
  for (int i = 0; i < 3; ++i) EXPECT_EQ(cli().ctl().Run(generate).exit, 1);
  cli().Delete("rollout");
  cli().CreateRollout("rollout", "2-3", Data().untied.folder);
  cli().Sync("actor", "rollout");
  EXPECT_EQ(cli().Generate("rollout", {{1, 2}}, 1)[0].weights_version, 5);
}

// The client is gone: its run ends after the step that it was in, whole.
TEST_F(WorkerFaultTest, Client_KilledInTrain_EndsAfterAStepAndTheEngineGoesOn) {
  Create("e", "1-2");
  const auto train = StartTraining("e", kForever);
  train->Signal(SIGKILL);
  EXPECT_EQ(train->Finish(absl::Seconds(5)), 128 + SIGKILL);
  EXPECT_TRUE(WaitUntil(absl::Seconds(5),
                        [&] { return cli().Describe("e").value("activity", "?").empty(); }));
  const auto step = cli().Row("e")["step"].get<int64_t>();
  EXPECT_GE(step, 1);
  EXPECT_LT(step, kForever);
  const Steps more = cli().Train("e", Text(2));
  EXPECT_EQ(more[0].step, step + 1);
  EXPECT_EQ(cli().Row("e")["dataPosition"], step + 2);
}

TEST_F(WorkerFaultTest, Client_Interrupted_EndsCleanlyAfterAStep) {
  Create("e", "1-2");
  const auto train = StartTraining("e", kForever);
  train->Signal(SIGINT);
  const CtlResult result = Collect(*train, absl::Seconds(10));
  EXPECT_EQ(result.exit, 0) << result.errors;
  const auto step = cli().Row("e")["step"].get<int64_t>();
  EXPECT_GE(step, ParseSteps(result).back().step);
  ExpectMentions(result.errors, {absl::StrCat("step ", step)});
  EXPECT_EQ(cli().Describe("e")["activity"], "");
  EXPECT_EQ(cli().Train("e", Text(1))[0].step, step + 1);
}

TEST_F(WorkerFaultTest, Train_TwoClientsOnOneEngine_EveryStepHappensOnce) {
  Create("e", "0-1");
  const auto a = cli().ctl().Start(TrainCommand("e", Text(30)));
  const auto b = cli().ctl().Start(TrainCommand("e", Text(30)));
  std::vector<int64_t> steps;
  int64_t expected = 0;
  for (Process* train : {a.get(), b.get()}) {
    const CtlResult result = Collect(*train);
    if (result.exit == 0) expected += 30;
    EXPECT_TRUE(result.exit == 0 || result.exit == 1) << result.errors;
    for (const StepRecord& record : ParseSteps(result)) steps.push_back(record.step);
  }
  EXPECT_GE(expected, 30) << "at least one of them trained";
  std::sort(steps.begin(), steps.end());
  ASSERT_EQ(static_cast<int64_t>(steps.size()), expected);
  for (int64_t i = 0; i < expected; ++i) EXPECT_EQ(steps[i], i + 1);
}

TEST_F(WorkerFaultTest, CancelOperation_OfATrainRun_EndsItAfterAStep) {
  Create("e", "0-1");
  const auto train = StartTraining("e", kForever);
  const nlohmann::json operations = cli().ctl().MustRun({"operation", "list"}).json()["operations"];
  ASSERT_FALSE(operations.empty());
  ASSERT_EQ(operations.back()["kind"], "train");
  const std::string id = operations.back()["id"];
  cli().ctl().MustRun({"operation", "cancel", id});
  const CtlResult result = Collect(*train, absl::Seconds(10));
  EXPECT_EQ(result.exit, 1);
  const nlohmann::json row = cli().Row("e");
  EXPECT_EQ(row["state"], "READY");
  EXPECT_EQ(row["step"], row["dataPosition"]);
  EXPECT_EQ(cli().Train("e", Text(1))[0].step, row["step"].get<int64_t>() + 1);
  const CtlResult again = cli().ctl().Run({"operation", "cancel", id});
  EXPECT_EQ(again.exit, 1) << "it is done";
}

TEST_F(WorkerFaultTest, Delete_WhileTraining_EndsTheRunAndFreesTheRanks) {
  Create("e", "0-2");
  const auto train = StartTraining("e", kForever);
  cli().ctl().MustRun({"engine", "delete", "e"}, absl::Seconds(15));
  const CtlResult result = Collect(*train, absl::Seconds(10));
  EXPECT_EQ(result.exit, 1);
  ExpectMentions(result.errors, {"e"});
  Create("e", "0-2");
  ExpectTrainsLikeTorch("e");
}

}  // namespace
}  // namespace regroup::harness
