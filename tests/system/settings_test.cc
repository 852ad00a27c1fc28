// What may change while an engine lives; and what `engine describe` says of its memory.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/system/cli.h"
#include "tests/system/fixtures.h"

namespace regroup::harness {
namespace {

TrainArgs Text(int64_t steps) { return {Data().text.path, steps, 4, kSeq, {}}; }

class SettingsTest : public FixtureTest {
 protected:
  static void SetUpTestSuite() { StartDaemonOnFixtures(4); }
};

TEST_F(SettingsTest, LearningRate_ChangesTheNextStepAsPlainTorchWould) {
  for (const reference::TrainOptions& options : {Sgd(0.1), AdamW(1e-3)}) {
    ReferenceRun reference(Data().untied, Data().text, options);
    cli().Create("actor", "1-2", Data().untied.folder, OptimizerFlags(options));
    ExpectSteps(cli().Train("actor", Text(2)), reference.Train(2, 4));
    const double lr = options.learning_rate / 4;
    const nlohmann::json operation =
        cli().ctl().MustRun({"engine", "set", "actor", absl::StrCat("--lr=", lr)}).json();
    EXPECT_EQ(operation["kind"], "set");
    EXPECT_EQ(operation["error"], "");
    EXPECT_EQ(cli().Describe("actor")["spec"]["optimizer"]["learningRate"], lr);
    reference.set_learning_rate(lr);
    const CtlResult train = cli().ctl().MustRun(TrainCommand("actor", Text(2)));
    ExpectSteps(ParseSteps(train), reference.Train(2, 4), 3);
    EXPECT_EQ(train.rows().back()["learningRate"], lr);
    // It goes along.
    cli().ctl().MustRun({"engine", "set", "actor", "--checks=full", "--timeout=45s"});
    cli().Relayout("actor", "3,0-1");
    ExpectSteps(cli().Train("actor", Text(2)), reference.Train(2, 4), 5);
    const nlohmann::json spec = cli().Describe("actor")["spec"];
    EXPECT_EQ(spec["optimizer"]["learningRate"], lr);
    EXPECT_EQ(spec["checks"], "FULL");
    EXPECT_EQ(spec["timeout"], 45);
    ExpectWeights(cli().Export("actor"), reference.weights(), options, 6);
    cli().Delete("actor");
  }
}

TEST_F(SettingsTest, WrongValues_ChangeNothing) {
  cli().Create("actor", "0-1", Data().untied.folder, OptimizerFlags(Sgd()));
  cli().CreateRollout("rollout", "2", Data().untied.folder);
  const nlohmann::json before = cli().Describe("actor");
  const struct {
    std::vector<std::string> command;
    int exit;
    const char* word;
  } wrong[] = {
      {{"engine", "set", "actor", "--lr=0"}, 2, "--lr"},
      {{"engine", "set", "actor", "--lr=nan"}, 2, "--lr"},
      {{"engine", "set", "actor", "--lr=-1"}, 2, "--lr"},
      {{"engine", "set", "actor", "--checks=some"}, 2, "--checks"},
      {{"engine", "set", "actor", "--timeout=2h"}, 2, "--timeout"},
      {{"engine", "set", "actor", "--timeout=1ms", "--lr=0.5"}, 2, "--timeout"},
      {{"engine", "set", "actor"}, 2, "--lr"},
      {{"engine", "set", "rollout", "--lr=0.5"}, 1, "trainers"},
      {{"engine", "set", "nobody", "--lr=0.5"}, 1, "nobody"},
  };
  for (const auto& each : wrong) {
    const CtlResult result = cli().ctl().Run(each.command);
    EXPECT_EQ(result.exit, each.exit) << each.command.back() << result.errors;
    EXPECT_NE(result.errors.find(each.word), std::string::npos) << result.errors;
  }
  EXPECT_EQ(cli().Describe("actor"), before);
  cli().ctl().MustRun({"engine", "set", "rollout", "--timeout=20s"});
  EXPECT_EQ(cli().Describe("rollout")["spec"]["timeout"], 20);
}

// 11.6 million parameters: what is listed of a rank is within what ZeRO-3 promises, and its process
// has grown by no more than a little above it.
TEST_F(SettingsTest, Memory_IsWhatIsListedAndWhatZeroPromises) {
  constexpr char kModel[] = "mlp:in=8,hidden=1024,layers=13,out=4";
  constexpr double kSlack = 64 << 20;  // activations, and what the allocator keeps
  std::vector<double> before;
  for (const int rank : {0, 1, 2, 3}) before.push_back(daemon().RankRow(rank)["rssBytes"]);
  for (const int ranks : {2, 4}) {
    const std::string list = ranks == 2 ? "1,3" : "0-3";
    cli().Create("actor", list, kModel, {"--optimizer=adamw", "--lr=0.001"});
    cli().Train("actor", {Data().mlp_path, 2, 8, 0, {}});
    const nlohmann::json engine = cli().Describe("actor");
    const double share = engine["parameters"].get<double>() / ranks;
    for (const nlohmann::json& memory : engine["memory"]) {
      const double weights = memory["weightsBytes"], optimizer = memory["optimizerBytes"];
      const double buffers = memory["buffersBytes"];
      EXPECT_NEAR(weights, 4 * share, 4096);
      EXPECT_NEAR(optimizer, 8 * share, 8192);
      // The shards of the gradient, then two buffers to gather into and three for gradients.
      EXPECT_GE(buffers, 4 * share);
      EXPECT_LE(buffers, 4 * share + 5 * 1.02 * 4 * (1024 * 1025 + 4096));
      const int rank = memory["rank"];
      const double growth = daemon().RankRow(rank)["rssBytes"].get<double>() - before[rank];
      EXPECT_GE(growth, 12 * share) << rank;
      EXPECT_LE(growth, 12 * share + buffers + kSlack) << rank;
    }
    cli().Delete("actor");
  }
}

}  // namespace
}  // namespace regroup::harness
