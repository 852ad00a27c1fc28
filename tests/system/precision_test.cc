// bf16 engines: weights that are the rounding of an fp32 master copy, on any ranks.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <ostream>
#include <string>
#include <vector>

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
  // Steps of this size are lost in bf16 weights that are stepped themselves.
  EXPECT_LT(steps.back().loss, steps.front().loss);
  const double moved = c.options.learning_rate * kSteps;
  for (const auto& [name, tensor] : cli().Export("e")) {
    EXPECT_EQ(tensor.dtype, "BF16") << name;
    const std::vector<float> values = ToFloats(tensor);
    const at::Tensor wanted = reference.weights().at(name).contiguous().view({-1});
    ASSERT_EQ(static_cast<int64_t>(values.size()), wanted.numel()) << name;
    for (size_t i = 0; i < values.size(); ++i) {
      const double value = wanted.const_data_ptr<float>()[i];
      ASSERT_NEAR(values[i], value, 2 * moved + std::abs(value) / 256) << name << " " << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, Bf16Parity,
                         ::testing::Values(Case{"One", "2", false, 5, AdamW()},
                                           Case{"Two", "1-2", true, 5, Adam()},
                                           Case{"Three", "3,0-1", false, 5, AdamW()},
                                           Case{"OneRowOnThree", "1-3", true, 1, AdamW()},
                                           Case{"Sgd", "0-1", false, 4, Sgd()}),
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

// A parameter of a trainer: 2 bytes of weights, 4 of master copy, 8 of moments.
TEST_F(PrecisionTest, Describe_CountsTheMasterCopy) {
  cli().Create("half", "0-2", Half(false).folder, OptimizerFlags(AdamW()));
  cli().Create("full", "0-2", Data().untied.folder, OptimizerFlags(AdamW()));
  cli().CreateRollout("rollout", "3", Half(false).folder);
  for (const std::string name : {"half", "full"}) {
    const int64_t width = name == "half" ? 2 : 4;
    int64_t weights = 0;
    for (const nlohmann::json& rank : cli().Describe(name)["memory"]) {
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

TEST_F(PrecisionTest, Fp16_IsNotAvailable) {
  for (const std::string role : {"--role=train", "--role=infer"}) {
    Names words = {"engine", "create",      "e", "--ranks=0", "--model=" + Data().untied.folder,
                   role,     "--dtype=fp16"};
    if (role == "--role=train") words.emplace_back("--lr=1e-3");
    const CtlResult refused = cli().ctl().Run(words);
    EXPECT_EQ(refused.exit, 1);
    for (const char* said : {"not available in this version", "--dtype=fp16"}) {
      EXPECT_NE(refused.errors.find(said), std::string::npos) << refused.errors;
    }
  }
}

}  // namespace
}  // namespace regroup::harness
