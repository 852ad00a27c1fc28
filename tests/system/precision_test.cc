// bf16 and fp16 engines: weights that are the rounding of an fp32 master copy, on any ranks.
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <ostream>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/system/cli.h"
#include "tests/system/fixtures.h"

namespace regroup::harness {
namespace {

using Names = std::vector<std::string>;
using Steps = std::vector<StepRecord>;

TrainArgs Text(int64_t steps, int64_t batch = 5) {
  return {Data().text.path, steps, batch, kSeq, {}};
}

// The models of the other tests in bf16.
LlamaFixture WriteBf16(const LlamaFixture& model) {
  LlamaFixture half = model;
  half.folder = model.folder + "-bf16";
  half.weights = ToBf16(model.weights);
  nlohmann::json config = ConfigOf(model.shape);
  config["torch_dtype"] = "bfloat16";
  WriteModel(half.folder, config, half.weights);
  return half;
}

const LlamaFixture& Half(bool tied) {
  static const LlamaFixture* const untied_model = new LlamaFixture(WriteBf16(Data().untied));
  static const LlamaFixture* const tied_model = new LlamaFixture(WriteBf16(Data().tied));
  return tied ? *tied_model : *untied_model;
}

reference::TrainOptions Bf16(reference::TrainOptions options) {
  options.bf16 = true;
  return options;
}

class PrecisionTest : public FixtureTest {
 protected:
  static void SetUpTestSuite() { StartDaemonOnFixtures(4); }
};

struct Case {
  std::string name;
  std::string ranks;
  bool tied = false;
  int64_t batch = 5;
  reference::TrainOptions options;
};

void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

class Bf16Parity : public PrecisionTest, public ::testing::WithParamInterface<Case> {};

TEST_P(Bf16Parity, Train_TwentySteps_FollowsAnFp32MasterLoop) {
  constexpr int64_t kSteps = 20;
  const Case& c = GetParam();
  const LlamaFixture& model = Half(c.tied);
  cli().Create("e", c.ranks, model.folder, OptimizerFlags(c.options));
  const Steps steps = cli().Train("e", Text(kSteps, c.batch));
  ReferenceRun reference(model, Data().text, Bf16(c.options));
  const std::vector<reference::Step> expected = reference.Train(kSteps, c.batch);
  ASSERT_EQ(steps.size(), expected.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_NEAR(steps[i].loss, expected[i].loss, 1e-2 * expected[i].loss) << "step " << i;
    EXPECT_NEAR(steps[i].grad_norm, expected[i].grad_norm, 5e-2 * expected[i].grad_norm) << i;
  }
  const double moved = c.options.learning_rate * kSteps;
  const reference::Weights initial = ToWeights(model.weights);
  for (const auto& [name, tensor] : cli().Export("e")) {
    EXPECT_EQ(tensor.dtype, "BF16") << name;
    const at::Tensor values = ToWeights({{name, tensor}}).at(name);
    const at::Tensor& wanted = reference.weights().at(name);
    ASSERT_EQ(values.sizes(), wanted.sizes()) << name;
    const at::Tensor off = (values - wanted).abs();
    EXPECT_LE((off - wanted.abs() / 256).max().item<double>(), 2 * moved) << name;
    // Most of the steps of weights near 1 would be lost if the bf16 weights were stepped.
    if (name.find("norm") == std::string::npos) continue;
    EXPECT_LT(off.mean().item<double>(),
              0.6 * (wanted - initial.at(name)).abs().mean().item<double>())
        << name;
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, Bf16Parity,
                         ::testing::Values(Case{"One", "2", false, 4, AdamW()},
                                           Case{"Two", "1-2", true, 3, Adam()},
                                           Case{"Three", "3,0-1", false, 4, AdamW()},
                                           Case{"OneRowOnThree", "1-3", true, 1, AdamW()}),
                         [](const auto& info) { return info.param.name; });

TEST_F(PrecisionTest, Export_WithoutAStep_IsTheFileByteForByte) {
  for (const std::string ranks : {"0", "2,0-1"}) {
    cli().Create("e", ranks, Half(true).folder, OptimizerFlags(AdamW()));
    const std::string folder = cli().ExportFolder("e");
    EXPECT_EQ(Differences(ReadSafetensors(folder + "/model.safetensors"), Half(true).weights),
              Names{});
    const auto config = nlohmann::json::parse(ReadFile(folder + "/config.json"), nullptr, false);
    EXPECT_EQ(config["torch_dtype"], "bfloat16");
    EXPECT_EQ(cli().Describe("e")["spec"]["dtype"], "BF16");
    cli().Delete("e");
  }
}

TEST_F(PrecisionTest, Create_WithDType_ConvertsTheFile) {
  cli().Create("down", "0-1", Data().untied.folder, {"--lr=1e-3", "--dtype=bf16"});
  EXPECT_EQ(Differences(cli().Export("down"), ToBf16(Data().untied.weights)), Names{});
  cli().Create("up", "2-3", Half(false).folder, {"--lr=1e-3", "--dtype=fp32"});
  const TensorMap wide = cli().Export("up");
  EXPECT_EQ(wide.at("model.norm.weight").dtype, "F32");
  EXPECT_EQ(Differences(ToBf16(wide), Half(false).weights), Names{});
  cli().Create("drawn", "1", "random:" + Half(false).folder, {"--lr=1e-3"});
  EXPECT_EQ(cli().Export("drawn").at("model.norm.weight").dtype, "BF16");
}

// Master copy, moments, step and data position: the identity in every bit of what follows.
TEST_F(PrecisionTest, Relayout_FourTwoFour_IsTheIdentity) {
  const Flags flags = OptimizerFlags(Adam());
  cli().Create("still", "0-3", Half(false).folder, flags);
  const Steps first = cli().Train("still", Text(3));
  const Steps then = cli().Train("still", Text(3));
  const TensorMap end = cli().Export("still");
  cli().Delete("still");

  cli().Create("moved", "0-3", Half(false).folder, flags);
  EXPECT_EQ(cli().Train("moved", Text(3)), first);
  const TensorMap before = cli().Export("moved");
  cli().Relayout("moved", "0-1");
  EXPECT_EQ(Differences(cli().Export("moved"), before), Names{});
  cli().Relayout("moved", "0-3");
  EXPECT_EQ(Differences(cli().Export("moved"), before), Names{});
  EXPECT_EQ(cli().Train("moved", Text(3)), then);
  EXPECT_EQ(Differences(cli().Export("moved"), end), Names{});
}

// In the middle of the round trip it trains on, as one that never moved would within rounding.
TEST_F(PrecisionTest, Train_BetweenRelayouts_FollowsAnFp32MasterLoop) {
  cli().Create("e", "0-3", Half(false).folder, OptimizerFlags(Adam()));
  Steps steps = cli().Train("e", Text(3));
  for (const std::string ranks : {"1-2", "0-3"}) {
    cli().Relayout("e", ranks);
    for (const StepRecord& step : cli().Train("e", Text(3))) steps.push_back(step);
  }
  ReferenceRun reference(Half(false), Data().text, Bf16(Adam()));
  const std::vector<reference::Step> expected = reference.Train(9, 5);
  ASSERT_EQ(steps.size(), expected.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_EQ(steps[i].step, static_cast<int64_t>(i) + 1);
    EXPECT_NEAR(steps[i].loss, expected[i].loss, 1e-2 * expected[i].loss) << "step " << i;
  }
}

// What the inference engine computes with equals the trainer's exported weights.
TEST_F(PrecisionTest, Sync_HandsOverTheBf16Weights) {
  const std::vector<std::vector<int64_t>> prompts = {{5}, {17, 200, 3}, {44, 43, 42, 41}};
  cli().Create("actor", "0-1", Half(false).folder, OptimizerFlags(AdamW(1e-2)));
  cli().CreateRollout("rollout", "2-3", Half(false).folder);
  const std::vector<Generated> untrained = cli().Generate("rollout", prompts, 6);
  cli().Train("actor", Text(3));
  cli().Sync("actor", "rollout");
  const std::vector<Generated> synced = cli().Generate("rollout", prompts, 6);

  cli().CreateRollout("reader", "2-3", cli().ExportFolder("actor"));
  const std::vector<Generated> read = cli().Generate("reader", prompts, 6);
  const reference::Llama llama = ReferenceOf(Half(false).shape);
  reference::Weights weights = ToWeights(cli().Export("actor"));
  for (auto& [name, weight] : weights) weight = weight.to(at::kBFloat16);
  for (size_t i = 0; i < prompts.size(); ++i) {
    EXPECT_EQ(synced[i].tokens, read[i].tokens);
    EXPECT_EQ(synced[i].logprobs, read[i].logprobs);
    EXPECT_NE(synced[i].logprobs, untrained[i].logprobs);
    std::vector<int64_t> row = prompts[i];
    row.insert(row.end(), synced[i].tokens.begin(), synced[i].tokens.end());
    const at::Tensor logprobs = reference::LogProbs(llama, weights, row);
    for (size_t k = 0; k < synced[i].tokens.size(); ++k) {
      const auto at = static_cast<int64_t>(prompts[i].size() + k) - 1;
      EXPECT_NEAR(synced[i].logprobs[k], logprobs[at][synced[i].tokens[k]].item<double>(), 5e-2);
    }
  }
}

TEST_F(PrecisionTest, Sync_BetweenDTypes_IsRefused) {
  cli().Create("actor", "0", Half(false).folder, OptimizerFlags(AdamW()));
  cli().CreateRollout("rollout", "1", Data().untied.folder);
  const CtlResult refused = cli().ctl().Run({"engine", "sync", "actor", "rollout"});
  EXPECT_EQ(refused.exit, 1);
  EXPECT_NE(refused.errors.find("dtype"), std::string::npos) << refused.errors;
}

// Through the daemon: the same bits with and without, and in the middle of a move.
TEST_F(PrecisionTest, Train_WithRecompute_GivesTheSameBits) {
  const Flags flags = OptimizerFlags(AdamW());
  Flags with = flags;
  with.emplace_back("--recompute");
  for (const LlamaFixture* model : {&Half(true), &Data().untied}) {
    cli().Create("plain", "0-2", model->folder, flags);
    cli().Create("again", "0-2", model->folder, with);
    EXPECT_EQ(cli().Train("again", Text(2)), cli().Train("plain", Text(2)));
    cli().Relayout("plain", "2-3");
    cli().Relayout("again", "2-3");
    EXPECT_EQ(cli().Train("again", Text(2)), cli().Train("plain", Text(2)));
    EXPECT_EQ(Differences(cli().Export("again"), cli().Export("plain")), Names{});
    EXPECT_EQ(cli().Describe("again")["spec"]["recompute"], true);
    cli().Delete("plain");
    cli().Delete("again");
  }
}

// A parameter of a trainer: 2 bytes of weights, 4 of master copy, 8 of moments.
TEST_F(PrecisionTest, Describe_CountsTheMasterCopy) {
  cli().Create("half", "0-2", Half(false).folder, OptimizerFlags(AdamW()));
  cli().Create("full", "0-2", Data().untied.folder, OptimizerFlags(AdamW()));
  cli().CreateRollout("rollout", "3", Half(false).folder);
  for (const std::string name : {"half", "full"}) {
    const int64_t width = name == "half" ? 2 : 4;
    int64_t weights = 0;
    const nlohmann::json memory = cli().Describe(name)["memory"];
    EXPECT_EQ(memory.size(), 3u);
    for (const nlohmann::json& rank : memory) {
      weights += rank["weightsBytes"].get<int64_t>();
      EXPECT_EQ(rank["optimizerBytes"].get<int64_t>(),
                rank["weightsBytes"].get<int64_t>() / width * (name == "half" ? 12 : 8));
    }
    EXPECT_GE(weights, 119232 * width);
    EXPECT_LT(weights, 119232 * width * 102 / 100);
  }
  EXPECT_EQ(cli().Describe("rollout")["memory"][0]["weightsBytes"], 119232 * 2);
  EXPECT_EQ(cli().Describe("rollout")["memory"][0]["optimizerBytes"], 0);
}

// fp16 from an fp32 file: the master copy has all its bits, so plain fp32 training is what it
// follows. No gradient of this model overflows under the first loss scale.
TEST_F(PrecisionTest, Train_Fp16_FollowsFp32Training) {
  Flags flags = OptimizerFlags(AdamW());
  flags.emplace_back("--dtype=fp16");
  cli().Create("e", "0-1", Data().tied.folder, flags);
  Steps steps = cli().Train("e", Text(4));
  cli().Relayout("e", "1-3");
  for (const StepRecord& step : cli().Train("e", Text(4))) steps.push_back(step);
  ReferenceRun reference(Data().tied, Data().text, AdamW());
  const std::vector<reference::Step> expected = reference.Train(8, 5);
  ASSERT_EQ(steps.size(), expected.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_EQ(steps[i].reason, "");
    EXPECT_NEAR(steps[i].loss, expected[i].loss, 1e-2 * expected[i].loss) << "step " << i;
    EXPECT_NEAR(steps[i].grad_norm, expected[i].grad_norm, 1e-2 * expected[i].grad_norm) << i;
  }
}

// The loss scale moves too: an engine that was at another one would skip, or round, differently.
TEST_F(PrecisionTest, Fp16_OverflowThenRelayouts_AreTheIdentity) {
  std::vector<MlpRow> rows = RandomMlpRows(8, kMlpIn, kMlpOut, 31);
  rows[1].y[0] = 3e38F;
  const std::string path = DataPath("overflow.jsonl");
  WriteMlpRows(path, rows);
  Flags flags = OptimizerFlags(Adam());
  flags.emplace_back("--dtype=fp16");
  std::vector<Steps> runs;
  for (const bool moves : {false, true}) {
    cli().Create("e", "0-3", kMlpSpec, flags);
    Steps steps = cli().Train("e", {path, 3, 4, 0, {}});
    EXPECT_TRUE(steps[0].skipped);
    EXPECT_NE(steps[0].reason.find("loss scale 65536 -> 32768"), std::string::npos)
        << steps[0].reason;
    if (moves) {
      const TensorMap before = cli().Export("e");
      EXPECT_EQ(before.begin()->second.dtype, "F16");
      cli().Relayout("e", "0-1");
      cli().Relayout("e", "0-3");
      EXPECT_EQ(Differences(cli().Export("e"), before), Names{});
    }
    for (const StepRecord& step : cli().Train("e", {path, 4, 4, 0, {}})) steps.push_back(step);
    runs.push_back(steps);
    cli().Delete("e");
  }
  ASSERT_EQ(runs[0].size(), 7u);
  ASSERT_EQ(runs[1].size(), 7u);
  for (size_t i = 0; i < 7; ++i) {
    EXPECT_EQ(runs[1][i].reason, runs[0][i].reason) << i;  // with the loss scale
    if (runs[0][i].skipped) continue;                      // its loss is no number
    EXPECT_EQ(runs[1][i], runs[0][i]) << i;
  }
}

// A loss that never is a number: each skip is a record with one halving, and at the floor the
// records go on to say why nothing is learnt.
TEST_F(PrecisionTest, Train_Fp16_ThatAlwaysOverflows_RecordsEachSkip) {
  std::vector<MlpRow> rows = RandomMlpRows(4, kMlpIn, kMlpOut, 31);
  rows[0].y[0] = 3e38F;
  const std::string path = DataPath("hopeless.jsonl");
  WriteMlpRows(path, rows);
  cli().Create("e", "0-3", kMlpSpec, {"--lr=1e-3", "--dtype=fp16"});
  const TensorMap before = cli().Export("e");
  const Steps steps = cli().Train("e", {path, 25, 4, 0, {}});
  ASSERT_EQ(steps.size(), 25u);
  int scale = 65536;
  for (const StepRecord& step : steps) {
    const int next = std::max(1, scale / 2);
    EXPECT_TRUE(step.skipped);
    EXPECT_EQ(step.step, 0);
    const std::string change = absl::StrCat("; loss scale ", scale, " -> ", next);
    EXPECT_TRUE(absl::EndsWith(step.reason, change)) << step.reason << ", not" << change;
    EXPECT_TRUE(absl::StartsWith(step.reason, "non-finite gradient in ")) << step.reason;
    scale = next;
  }
  EXPECT_EQ(cli().Row("e")["dataPosition"], 25);
  EXPECT_EQ(Differences(cli().Export("e"), before), Names{});
}

TEST_F(PrecisionTest, Sync_Fp16_EqualsWhatWasExported) {
  Flags flags = OptimizerFlags(AdamW(1e-2));
  flags.emplace_back("--dtype=fp16");
  cli().Create("actor", "0-1", Data().untied.folder, flags);
  cli().Create("rollout", "2", Data().untied.folder, {"--role=infer", "--dtype=fp16"});
  cli().Train("actor", Text(2));
  cli().Sync("actor", "rollout");
  cli().CreateRollout("reader", "3", cli().ExportFolder("actor"));
  const Generated synced = cli().Generate("rollout", {{17, 200, 3}}, 6)[0];
  const Generated read = cli().Generate("reader", {{17, 200, 3}}, 6)[0];
  EXPECT_EQ(synced.tokens, read.tokens);
  EXPECT_EQ(synced.logprobs, read.logprobs);
}

}  // namespace
}  // namespace regroup::harness
