// Engines come and go on any ranks, in any order and at the same time, and never notice each other.
#include <gtest/gtest.h>
#include <signal.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/system/cli.h"
#include "tests/system/fixtures.h"

namespace regroup::harness {
namespace {

using Steps = std::vector<StepRecord>;

TrainArgs Text(int64_t steps, int64_t batch = 4) {
  return {Data().text.path, steps, batch, kSeq, {}};
}

TrainArgs OtherText(int64_t steps) { return {Data().other_text.path, steps, 6, kSeq, {}}; }

class HistoryTest : public FixtureTest {
 protected:
#ifdef REGROUP_TEST_TWO_NODES
  // The same histories with ranks 2-3 on another node.
  static void SetUpTestSuite() {
    StartDaemonOnFixtures(2);
    StartJoined("b", 2);
  }
#else
  static void SetUpTestSuite() { StartDaemonOnFixtures(4); }
#endif

  static void CreateL2(const std::string& name, const std::string& ranks) {
    cli().Create(name, ranks, Data().untied.folder, OptimizerFlags(AdamW()));
  }

  // What a fresh engine of this layout says of its first steps.
  static Steps Fresh(const std::string& ranks, int64_t steps) {
    CreateL2("fresh", ranks);
    Steps result = cli().Train("fresh", Text(steps));
    cli().Delete("fresh");
    return result;
  }
};

TEST_F(HistoryTest, Create_AfterOtherLayouts_RepeatsEveryBit) {
  const Steps four = Fresh("0-3", 3);
  const Steps two = Fresh("0-1", 3);
  EXPECT_EQ(Fresh("0-3", 3), four);
  EXPECT_EQ(Fresh("0-1", 3), two);
  ReferenceRun reference(Data().untied, Data().text, AdamW());
  const std::vector<reference::Step> expected = reference.Train(3, 4);
  ExpectSteps(four, expected);
  ExpectSteps(two, expected);
}

TEST_F(HistoryTest, Create_OnOverlappingRanksWhileTheFirstLives_BothMatchPlainTorch) {
  CreateL2("first", "0-1");
  Steps first = cli().Train("first", Text(2));
  CreateL2("second", "1-3");
  const Steps second = cli().Train("second", Text(3));
  for (const StepRecord& step : cli().Train("first", Text(1))) first.push_back(step);
  ReferenceRun reference(Data().untied, Data().text, AdamW());
  const std::vector<reference::Step> expected = reference.Train(3, 4);
  ExpectSteps(first, expected);
  ExpectSteps(second, expected);
  cli().Delete("first");
  const Steps more = cli().Train("second", Text(1));
  ExpectSteps(more, reference.Train(1, 4), 4);
}

TEST_F(HistoryTest, Create_OneRankBetweenOthers_RepeatsEveryBit) {
  const Steps alone = Fresh("2", 2);
  CreateL2("wide", "0-3");
  cli().Train("wide", Text(1));
  EXPECT_EQ(Fresh("2", 2), alone);
  cli().Train("wide", Text(1));
}

// Two trainers on the same ranks, trained by two clients at the same time: tickets interleave their
// steps and neither changes a bit of the other.
TEST_F(HistoryTest, Train_TwoEnginesOnTheSameRanks_InterleaveAndKeepTheirBits) {
  constexpr int64_t kShort = 12;
  CreateL2("a", "1-2");
  const Steps a_alone = cli().Train("a", Text(kShort));
  cli().Delete("a");
  cli().Create("b", "2,1", Data().tied.folder, OptimizerFlags(Sgd()));
  const Steps b_alone = cli().Train("b", OtherText(kShort));
  cli().Delete("b");

  CreateL2("a", "1-2");
  cli().Create("b", "2,1", Data().tied.folder, OptimizerFlags(Sgd()));
  constexpr int64_t kLong = 200;
  const auto a = cli().ctl().Start(TrainCommand("a", Text(kLong)));
  ASSERT_TRUE(WaitUntil(absl::Seconds(30), [&] { return !a->OutputLines().empty(); }));
  const Steps b_steps = cli().Train("b", OtherText(kShort));
  EXPECT_TRUE(a->Running()) << "b had to wait for all of a";
  const CtlResult a_result = Collect(*a, absl::Seconds(180));
  EXPECT_EQ(a_result.exit, 0) << a_result.errors;
  Steps a_steps = ParseSteps(a_result);
  ASSERT_EQ(a_steps.size(), static_cast<size_t>(kLong));
  a_steps.resize(kShort);
  EXPECT_EQ(a_steps, a_alone);
  EXPECT_EQ(b_steps, b_alone);
}

TEST_F(HistoryTest, CreateAndDelete_ThirtyTimesTheSame_AlwaysRepeats) {
  const Steps expected = Fresh("1-3", 1);
  for (int i = 0; i < 30 && !HasFailure(); ++i)
    EXPECT_EQ(Fresh("1-3", 1), expected) << "time " << i;
}

TEST_F(HistoryTest, CreateAndDelete_ThirtyTimesOnOtherRanks_AlwaysMatchesPlainTorch) {
  const std::vector<std::string> layouts = {"0",   "0-1", "3,0", "1-3",
                                            "0-3", "2,1", "0,2", "3-3,0-1"};
  ReferenceRun reference(Data().untied, Data().text, AdamW());
  const std::vector<reference::Step> expected = reference.Train(1, 4);
  for (int i = 0; i < 30 && !HasFailure(); ++i) {
    ExpectSteps(Fresh(layouts[i % layouts.size()], 1), expected);
  }
}

TEST_F(HistoryTest, Create_DisjointByTwoClientsAtOnce_BothTrain) {
  ReferenceRun reference(Data().untied, Data().text, AdamW());
  const std::vector<reference::Step> expected_a = reference.Train(1, 4);
  ReferenceRun tied(Data().tied, Data().other_text, Sgd());
  const std::vector<reference::Step> expected_b = tied.Train(1, 6);
  const auto create = [](const std::string& name, const std::string& ranks,
                         const std::string& model, const reference::TrainOptions& options) {
    std::vector<std::string> command = {"engine", "create", name, "--ranks=" + ranks,
                                        "--model=" + model};
    for (const std::string& flag : OptimizerFlags(options)) command.push_back(flag);
    return cli().ctl().Start(command);
  };
  for (int round = 0; round < 8 && !HasFailure(); ++round) {
    const auto a = create("a", "0,3", Data().untied.folder, AdamW());
    // At once, and in each phase of the other's creation.
    const std::vector<std::string> phases = {"", "prepare", "form", "load"};
    if (round % 4 != 0) cli().AwaitPhase("a", phases[round % 4], *a);
    const auto b = create("b", "1,2", Data().tied.folder, Sgd());
    EXPECT_EQ(a->Finish(absl::Seconds(30)), 0) << a->Errors();
    EXPECT_EQ(b->Finish(absl::Seconds(30)), 0) << b->Errors();
    EXPECT_EQ(cli().Ranks("a"), (std::vector<int>{0, 3}));
    EXPECT_EQ(cli().Ranks("b"), (std::vector<int>{1, 2}));
    const auto train_a = cli().ctl().Start(TrainCommand("a", Text(1)));
    const auto train_b = cli().ctl().Start(TrainCommand("b", OtherText(1)));
    ExpectSteps(ParseSteps(Collect(*train_a)), expected_a);
    ExpectSteps(ParseSteps(Collect(*train_b)), expected_b);
    cli().Delete("a");
    cli().Delete("b");
  }
}

// An engine may be deleted while it is being made.
TEST_F(HistoryTest, Delete_RightAfterAnUnfinishedCreate_LeavesNothing) {
  for (int round = 0; round < 8 && !HasFailure(); ++round) {
    std::vector<std::string> command = {
        "engine", "create", "e", "--ranks=0-3", "--no-wait", "--model=" + Data().untied.folder};
    for (const std::string& flag : OptimizerFlags(AdamW())) command.push_back(flag);
    cli().ctl().MustRun(command);
    cli().Delete("e");
    EXPECT_TRUE(cli().EngineNames().empty());
    for (int rank = 0; rank < 4; ++rank) {
      EXPECT_EQ(daemon().RankRow(rank)["engines"].size(), 0u);
      EXPECT_EQ(daemon().RankRow(rank)["error"], "") << "no rank had to be killed for it";
    }
  }
  EXPECT_EQ(Fresh("0-3", 1).size(), 1u);
}

// A rank that stands still in the middle of a step keeps that step from ending. Nobody else waits
// for it.
TEST_F(HistoryTest, Create_WhileAnotherEnginesStepHangs_DoesNotWait) {
  const Steps alone = Fresh("0-1", 150);
  const pid_t stopped = daemon().WorkerPid(1);
  ASSERT_GT(stopped, 0);
  CreateL2("a", "0-1");
  const auto train = cli().ctl().Start(TrainCommand("a", Text(150)));
  ASSERT_TRUE(WaitUntil(absl::Seconds(30), [&] { return !train->OutputLines().empty(); }));
  ASSERT_EQ(kill(stopped, SIGSTOP), 0);
  CreateL2("b", "2-3");
  EXPECT_TRUE(train->Running());
  const Steps b = cli().Train("b", Text(2));
  ASSERT_EQ(kill(stopped, SIGCONT), 0);
  const CtlResult result = Collect(*train, absl::Seconds(60));
  EXPECT_EQ(result.exit, 0) << result.errors;
  EXPECT_EQ(ParseSteps(result), alone);
  ReferenceRun reference(Data().untied, Data().text, AdamW());
  ExpectSteps(b, reference.Train(2, 4));
}

// Group scope: a rank outside the engine may stand still for as long as it likes.
TEST_F(HistoryTest, Train_WhileAnOutsideRankStandsStill_GoesOn) {
  const pid_t stopped = daemon().WorkerPid(0);
  ASSERT_GT(stopped, 0);
  ASSERT_EQ(kill(stopped, SIGSTOP), 0);
  CreateL2("e", "1-2");
  const Steps steps = cli().Train("e", Text(3));
  cli().Relayout("e", "3,1");
  cli().Export("e");
  cli().Delete("e");
  ASSERT_EQ(kill(stopped, SIGCONT), 0);
  ReferenceRun reference(Data().untied, Data().text, AdamW());
  ExpectSteps(steps, reference.Train(3, 4));
  // The rank is as good as before, whether it was kept or started again.
  EXPECT_TRUE(daemon().WaitForRestart(0, /*old_pid=*/-1));
  EXPECT_EQ(Fresh("0", 1).size(), 1u);
}

TEST_F(HistoryTest, Trace_AfterTraining_ShowsTheEnginesGroupOnly) {
  CreateL2("e", "1-2");
  cli().Train("e", Text(3));
  const nlohmann::json trace = cli().ctl().MustRun({"engine", "trace", "e"}).json();
  ASSERT_EQ(trace["groups"].size(), 1u) << trace;
  EXPECT_EQ(trace["groups"][0]["name"], "dp");
  EXPECT_EQ(trace["groups"][0]["ranks"], (std::vector<int>{1, 2}));
  EXPECT_EQ(trace["groups"][0]["parameters"], 119232);
  ASSERT_EQ(trace["passes"].size(), 1u) << trace;
  const nlohmann::json& pass = trace["passes"][0];
  EXPECT_EQ(pass["kind"], "train");
  EXPECT_EQ(pass["state"], "AGREED");
  EXPECT_EQ(pass["records"], 1);
  EXPECT_GT(pass["gathers"], 0);
  EXPECT_GT(pass["prefetches"], 0);
  EXPECT_GT(pass["reductions"], 0);
  int64_t position = 0;
  int64_t gathers = 0;
  int64_t reductions = 0;
  for (const nlohmann::json& entry : pass["entries"]) {
    EXPECT_EQ(entry["position"], position++);
    EXPECT_EQ(entry["group"], "dp");
    EXPECT_FALSE(entry["parameterIds"].empty());
    gathers += entry["operation"] == "gather" ? 1 : 0;
    reductions += entry["operation"] == "reduce" ? 1 : 0;
  }
  EXPECT_EQ(gathers + reductions, position);
  // Embedding, two layers, the final norm, the head: each unit's gradient is reduced once.
  const nlohmann::json described = cli().Describe("e");
  EXPECT_EQ(reductions, described["units"].get<int64_t>());
  EXPECT_EQ(described["parameters"], 119232);
  EXPECT_EQ(described["memory"].size(), 2u);
}

TEST_F(HistoryTest, Trace_AnotherBatchShape_IsRecordedAgainAndAgreed) {
  CreateL2("e", "0-1");
  cli().Train("e", Text(2, 4));
  cli().Train("e", Text(2, 1));
  const nlohmann::json trace = cli().ctl().MustRun({"engine", "trace", "e"}).json();
  for (const nlohmann::json& pass : trace["passes"]) EXPECT_EQ(pass["state"], "AGREED") << trace;
}

}  // namespace
}  // namespace regroup::harness
