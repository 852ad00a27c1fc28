// A trainer generates with the weights that it has: its ranks step together, and training goes on
// as if nothing had been generated.
#include <gtest/gtest.h>
#include <signal.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/system/cli.h"
#include "tests/system/fixtures.h"

namespace regroup::harness {
namespace {

using Prompts = std::vector<std::vector<int64_t>>;

TrainArgs Text(int64_t steps) { return {Data().text.path, steps, 4, kSeq, {}}; }

// Of several lengths, so that the rows do not end together at the end of the context.
Prompts SomePrompts() {
  return {RandomTokens(60, 257, 1), {17, 200, 3}, RandomTokens(58, 257, 2), {5}, {90, 91, 92}};
}

class TrainerGenerateTest : public FixtureTest {
 protected:
  static void SetUpTestSuite() { StartDaemonOnFixtures(4); }

  static void CreateTrainer(const std::string& name, const std::string& ranks,
                            const LlamaFixture& model = Data().untied) {
    cli().Create(name, ranks, model.folder, OptimizerFlags(AdamW(1e-2)));
  }

  // A trainer whose context has no end that matters.
  static void CreateEndless(const std::string& name, const std::string& ranks) {
    SmallLlama shape = Data().untied.shape;
    shape.max_positions = 100000;
    const std::string folder = DataPath("endless");
    WriteModel(folder, ConfigOf(shape), Data().untied.weights);
    cli().Create(name, ranks, folder, OptimizerFlags(AdamW(1e-2)));
  }

  static std::unique_ptr<Process> StartEndless(const std::string& engine) {
    const int64_t before = DecodeGathers(engine);
    auto generate =
        cli().ctl().Start({"generate", engine, "--tokens=17,200,3", "--max-tokens=99000",
                           "--stop-token=256", "--top-k=200", "--temperature=1"});
    EXPECT_TRUE(WaitUntil(absl::Seconds(30), [&] { return DecodeGathers(engine) > before; }));
    return generate;
  }

  // Of the trace of its generation, as the lead counts them; 0 if there is none.
  static int64_t DecodeGathers(const std::string& engine) {
    const nlohmann::json trace = cli().ctl().MustRun({"engine", "trace", engine}).json();
    for (const nlohmann::json& pass : trace["passes"]) {
      if (pass["kind"] == "decode") return pass["gathers"].get<int64_t>();
    }
    return 0;
  }
};

TEST_F(TrainerGenerateTest, OnAnyRanks_EqualsASyncedInferenceEngine) {
  const int64_t units = 2 + Data().untied.shape.layers;
  CreateTrainer("actor", "1-2");
  cli().CreateRollout("rollout", "3", Data().untied.folder);
  cli().Train("actor", Text(3));
  cli().Sync("actor", "rollout");
  for (const std::string ranks : {"1-2", "3,0-1", "2"}) {
    if (ranks != "1-2") cli().Relayout("actor", ranks);
    int64_t passes = 0;
    for (const Flags& flags : {Flags{}, Flags{"--temperature=0.7", "--seed=12", "--top-p=0.9"}}) {
      const std::vector<Generated> expected = cli().Generate("rollout", SomePrompts(), 12, flags);
      const std::vector<Generated> outputs = cli().Generate("actor", SomePrompts(), 12, flags);
      size_t longest = 0;
      for (size_t i = 0; i < expected.size(); ++i) {
        EXPECT_EQ(outputs[i].tokens, expected[i].tokens) << ranks << " row " << i;
        EXPECT_EQ(outputs[i].logprobs, expected[i].logprobs) << ranks << " row " << i;
        EXPECT_EQ(outputs[i].finish_reason, expected[i].finish_reason);
        EXPECT_EQ(outputs[i].weights_version, 4);
        longest = std::max(longest, outputs[i].tokens.size());
      }
      // As many passes as the longest row has tokens, and no more.
      passes += static_cast<int64_t>(longest);
      EXPECT_EQ(DecodeGathers("actor"), passes * units) << ranks;
    }
  }
  const std::vector<Generated> one = cli().Generate("actor", {{17, 200, 3}}, 5);
  ExpectGreedy({17, 200, 3}, one[0], Data().untied, cli().Export("actor"));
}

TEST_F(TrainerGenerateTest, BetweenSteps_TrainingKeepsItsBits) {
  CreateTrainer("plain", "0-2", Data().tied);
  const std::vector<StepRecord> expected = cli().Train("plain", Text(4));
  CreateTrainer("actor", "0-2", Data().tied);
  std::vector<StepRecord> steps = cli().Train("actor", Text(2));
  cli().Generate("actor", SomePrompts(), 6);
  for (const StepRecord& step : cli().Train("actor", Text(1))) steps.push_back(step);
  cli().Generate("actor", {{5}}, 3);
  for (const StepRecord& step : cli().Train("actor", Text(1))) steps.push_back(step);
  EXPECT_EQ(steps, expected);
  EXPECT_EQ(Differences(cli().Export("actor"), cli().Export("plain")), std::vector<std::string>{});
  for (const nlohmann::json& pass :
       cli().ctl().MustRun({"engine", "trace", "actor"}).json()["passes"]) {
    EXPECT_EQ(pass["records"], 1) << pass["kind"];
    EXPECT_EQ(pass["state"], "AGREED") << pass["kind"];
  }
}

// Its own ranks alone take part: the other trainer is idle, and steps later as if nothing had been.
TEST_F(TrainerGenerateTest, OnSomeRanks_IdleTrainersAreNotWaitedFor) {
  CreateTrainer("a", "0-1");
  CreateTrainer("b", "2-3");
  ReferenceRun reference(Data().untied, Data().text, AdamW(1e-2));
  const std::vector<reference::Step> expected = reference.Train(2, 4);
  const Generated by_a = cli().Generate("a", SomePrompts(), 8)[1];
  EXPECT_EQ(DecodeGathers("b"), 0);
  const Generated by_b = cli().Generate("b", SomePrompts(), 8)[1];
  EXPECT_EQ(by_a.logprobs, by_b.logprobs);
  for (const char* name : {"b", "a"}) ExpectSteps(cli().Train(name, Text(2)), expected);
}

TEST_F(TrainerGenerateTest, AnMlp_IsRefused) {
  cli().Create("mlp", "0-1", kMlpSpec, OptimizerFlags(Sgd()));
  const CtlResult result = cli().ctl().Run({"generate", "mlp", "--tokens=1", "--max-tokens=1"});
  EXPECT_EQ(result.exit, 1);
  EXPECT_NE(result.errors.find("language model"), std::string::npos) << result.errors;
  EXPECT_EQ(cli().State("mlp"), "READY");
}

TEST_F(TrainerGenerateTest, CancelledOrLeftByItsClient_EndsAndTheTrainerGoesOn) {
  CreateTrainer("plain", "0-1");
  const std::vector<StepRecord> expected = cli().Train("plain", Text(2));
  CreateEndless("actor", "0-1");
  {
    const auto generate = StartEndless("actor");
    const nlohmann::json operations =
        cli().ctl().MustRun({"operation", "list"}).json()["operations"];
    ASSERT_EQ(operations.back()["kind"], "generate");
    const CtlResult cancel =
        cli().ctl().Run({"operation", "cancel", operations.back()["id"].get<std::string>()});
    EXPECT_EQ(cancel.json()["done"], true) << cancel.errors;
    const CtlResult result = Collect(*generate);
    EXPECT_EQ(result.exit, 1);
    const nlohmann::json output = result.rows().back()["outputs"][0];
    EXPECT_EQ(output["finishReason"], "CANCELLED");
    EXPECT_GE(output["tokens"].size(), 1u);
  }
  {
    const auto generate = StartEndless("actor");
    generate->Signal(SIGKILL);
    generate->Finish(absl::Seconds(30));
    EXPECT_TRUE(WaitUntil(absl::Seconds(30), [] { return cli().Row("actor")["activity"] == ""; }));
  }
  EXPECT_EQ(cli().Train("actor", Text(2)), expected);
}

TEST_F(TrainerGenerateTest, RankKilled_FailsTheEngineAndFreesTheOthers) {
  CreateEndless("hit", "0-2");
  const auto generate = StartEndless("hit");
  const pid_t pid = daemon().WorkerPid(1);
  ASSERT_EQ(kill(pid, SIGKILL), 0);
  const CtlResult result = Collect(*generate);
  EXPECT_EQ(result.exit, 1);
  EXPECT_NE(result.errors.find("rank 1"), std::string::npos) << result.errors;
  EXPECT_NE(result.errors.find("SIGKILL"), std::string::npos) << result.errors;
  EXPECT_TRUE(WaitUntil(absl::Seconds(30), [] { return cli().State("hit") == "FAILED"; }));
  CreateTrainer("next", "0,2");
  ReferenceRun reference(Data().untied, Data().text, AdamW(1e-2));
  ExpectSteps(cli().Train("next", Text(2)), reference.Train(2, 4));
  cli().Generate("next", {{5}}, 3);
  EXPECT_TRUE(daemon().WaitForRestart(1, pid));
}

TEST_F(TrainerGenerateTest, Deleted_EndsTheGenerationAndFreesTheRanks) {
  CreateEndless("actor", "0-2");
  const auto generate = StartEndless("actor");
  cli().ctl().MustRun({"engine", "delete", "actor"});
  EXPECT_EQ(Collect(*generate).exit, 1);
  CreateTrainer("actor", "0-2");
  cli().Train("actor", Text(1));
}

}  // namespace
}  // namespace regroup::harness
