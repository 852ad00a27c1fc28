// An engine on any ranks trains as plain libtorch does in one process.
#include <gtest/gtest.h>

#include <filesystem>
#include <limits>
#include <ostream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/system/cli.h"
#include "tests/system/fixtures.h"

namespace regroup::harness {
namespace {

constexpr int64_t kSteps = 3;

enum class ModelKind { kUntied, kTied, kMlp };

struct Case {
  std::string name;
  ModelKind model = ModelKind::kUntied;
  std::string ranks;
  reference::TrainOptions options;
  int64_t batch = 4;
  int64_t accumulate = 1;
};

void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

reference::TrainOptions Clipped(reference::TrainOptions options) {
  options.clip_norm = 0.5;  // the norms of these models are 1.5 and more
  return options;
}

reference::TrainOptions WithMomentum(reference::TrainOptions options) {
  options.momentum = 0.9;
  options.weight_decay = 0.01;
  return options;
}

reference::TrainOptions WithDecay(reference::TrainOptions options) {
  options.weight_decay = 0.1;
  return options;
}

std::string NameOf(const ::testing::TestParamInfo<Case>& info) { return info.param.name; }

class ParityTest : public FixtureTest, public ::testing::WithParamInterface<Case> {
 protected:
  void ExpectParity() {
    const Case& c = GetParam();
    if (c.model == ModelKind::kMlp) {
      cli().Create("e", c.ranks, kMlpSpec, OptimizerFlags(c.options));
      ReferenceRun reference(cli().Export("e"), c.options);
      Compare(reference, {Data().mlp_path, kSteps, c.batch, 0, Accumulate(c)}, c.batch * kMlpOut);
      return;
    }
    const LlamaFixture& model = c.model == ModelKind::kTied ? Data().tied : Data().untied;
    cli().Create("e", c.ranks, model.folder, OptimizerFlags(c.options));
    ReferenceRun reference(model, Data().text, c.options);
    Compare(reference, {Data().text.path, kSteps, c.batch, kSeq, Accumulate(c)}, c.batch * kSeq);
  }

  static Flags Accumulate(const Case& c) {
    if (c.accumulate == 1) return {};
    return {absl::StrCat("--accumulate=", c.accumulate)};
  }

  static void Compare(ReferenceRun& reference, const TrainArgs& args, int64_t tokens_a_step) {
    const std::vector<StepRecord> steps = cli().Train("e", args);
    ExpectSteps(steps, reference.Train(args.steps, args.batch));
    for (const StepRecord& step : steps) EXPECT_EQ(step.tokens, tokens_a_step);
    ExpectWeights(cli().Export("e"), reference.weights(), GetParam().options, args.steps);
  }
};

class ParityOfThree : public ParityTest {
 protected:
  static void SetUpTestSuite() { StartDaemonOnFixtures(3); }
};

TEST_P(ParityOfThree, Train_OnRanks1And2_MatchesPlainTorch) { ExpectParity(); }

INSTANTIATE_TEST_SUITE_P(
    All, ParityOfThree,
    ::testing::Values(Case{"Sgd", ModelKind::kUntied, "1-2", Sgd()},
                      Case{"SgdClipped", ModelKind::kUntied, "1-2", Clipped(Sgd())},
                      Case{"AdamW", ModelKind::kUntied, "1-2", AdamW()},
                      Case{"AdamWClipped", ModelKind::kUntied, "1-2", Clipped(AdamW())}),
    NameOf);

class ParityOfFour : public ParityTest {
 protected:
  static void SetUpTestSuite() { StartDaemonOnFixtures(4); }
};

TEST_P(ParityOfFour, Train_OnAnyRanks_MatchesPlainTorch) { ExpectParity(); }

INSTANTIATE_TEST_SUITE_P(
    Ranks, ParityOfFour,
    ::testing::Values(Case{"One", ModelKind::kUntied, "2", AdamW()},
                      Case{"OneSgd", ModelKind::kUntied, "0", Sgd()},
                      Case{"Two", ModelKind::kUntied, "0-1", Sgd()},
                      Case{"Three", ModelKind::kUntied, "0-2", AdamW()},
                      Case{"ThreeSgd", ModelKind::kUntied, "1-3", Sgd()},
                      Case{"Four", ModelKind::kUntied, "0-3", AdamW()},
                      Case{"FourSgdClipped", ModelKind::kUntied, "0-3", Clipped(Sgd())},
                      Case{"Apart", ModelKind::kUntied, "0,2", AdamW()},
                      Case{"Reversed", ModelKind::kUntied, "3,1", Sgd()},
                      Case{"Momentum", ModelKind::kUntied, "1-3", WithMomentum(Sgd())}),
    NameOf);

INSTANTIATE_TEST_SUITE_P(
    AdamWithL2, ParityOfFour,
    ::testing::Values(Case{"One", ModelKind::kTied, "3", Clipped(WithDecay(Adam()))},
                      Case{"Three", ModelKind::kUntied, "1-3", WithDecay(Adam()), 5},
                      Case{"MlpDefaults", ModelKind::kMlp, "0-1", Adam(), 7}),
    NameOf);

INSTANTIATE_TEST_SUITE_P(
    Batches, ParityOfFour,
    ::testing::Values(Case{"FiveRowsOnTwo", ModelKind::kUntied, "0-1", Sgd(), 5},
                      Case{"FiveRowsOnThree", ModelKind::kUntied, "0-2", AdamW(), 5},
                      Case{"OneRowOnThree", ModelKind::kUntied, "1-3", Sgd(), 1},
                      Case{"OneRowOnFourClipped", ModelKind::kUntied, "0-3", Clipped(AdamW()), 1},
                      Case{"AroundTheEnd", ModelKind::kUntied, "0-1", Sgd(), 17}),
    NameOf);

INSTANTIATE_TEST_SUITE_P(
    Accumulated, ParityOfFour,
    ::testing::Values(Case{"One", ModelKind::kTied, "2", AdamW(), 5, 2},
                      Case{"Two", ModelKind::kUntied, "1-2", Clipped(Sgd()), 7, 3},
                      Case{"RowByRowOnThree", ModelKind::kUntied, "0-2", AdamW(), 4, 4},
                      Case{"MlpOnThree", ModelKind::kMlp, "3,0-1", Sgd(0.05), 8, 3}),
    NameOf);

INSTANTIATE_TEST_SUITE_P(Tied, ParityOfFour,
                         ::testing::Values(Case{"OneSgd", ModelKind::kTied, "3", Sgd()},
                                           Case{"TwoSgd", ModelKind::kTied, "1-2", Clipped(Sgd())},
                                           Case{"ThreeAdamW", ModelKind::kTied, "0-2", AdamW(), 5},
                                           Case{"FourOneRow", ModelKind::kTied, "0-3", Sgd(), 1}),
                         NameOf);

INSTANTIATE_TEST_SUITE_P(
    Mlp, ParityOfFour,
    ::testing::Values(Case{"Two", ModelKind::kMlp, "1-2", Sgd(0.05), 5},
                      Case{"Three", ModelKind::kMlp, "0,2-3", Clipped(AdamW()), 7},
                      Case{"FourOneRow", ModelKind::kMlp, "0-3", Sgd(0.05), 1}),
    NameOf);

class Parity : public FixtureTest {
 protected:
  static void SetUpTestSuite() { StartDaemonOnFixtures(4); }
};

// No tensor is left behind, small ones in a group of one rank included: the first step records the
// trace, the second prefetches by it.
TEST_F(Parity, Train_EachStep_ChangesTheTensorsThatPlainTorchChanges) {
  const LlamaFixture& model = Data().untied;
  for (const std::string ranks : {"2", "0-3"}) {
    cli().Create("e", ranks, model.folder, OptimizerFlags(Sgd()));
    ReferenceRun reference(model, Data().text, Sgd());
    TensorMap before = model.weights;
    for (int step = 0; step < 2; ++step) {
      reference::Weights wanted;
      for (const auto& [name, weight] : reference.weights()) wanted[name] = weight.detach().clone();
      reference.Train(1, 4);
      std::vector<std::string> changed;
      for (const auto& [name, weight] : reference.weights()) {
        if (!weight.equal(wanted.at(name))) changed.push_back(name);
      }
      EXPECT_EQ(changed.size(), model.weights.size())
          << "every tensor of this model has a gradient";
      cli().Train("e", {Data().text.path, 1, 4, kSeq, {}});
      const TensorMap after = cli().Export("e");
      EXPECT_EQ(Differences(after, before), changed) << "ranks " << ranks << ", step " << step;
      before = after;
    }
    cli().Delete("e");
  }
}

// Data goes on where it stands: two commands of two steps are one of four.
TEST_F(Parity, Train_InTwoCommands_GoesOnInTheData) {
  const Flags flags = OptimizerFlags(AdamW());
  cli().Create("e", "1-2", Data().untied.folder, flags);
  const TrainArgs two = {Data().text.path, 2, 4, kSeq, {}};
  std::vector<StepRecord> steps = cli().Train("e", two);
  for (const StepRecord& step : cli().Train("e", two)) steps.push_back(step);
  ReferenceRun reference(Data().untied, Data().text, AdamW());
  ExpectSteps(steps, reference.Train(4, 4));
  const nlohmann::json row = cli().Row("e");
  EXPECT_EQ(row.value("step", -1), 4);
  EXPECT_EQ(row.value("dataPosition", -1), 4);
  EXPECT_EQ(row.value("weightsVersion", -1), 5);
}

// Another pattern has a trace of its own and throws none away.
TEST_F(Parity, Train_AccumulationPatterns_AreRecordedOnceEach) {
  cli().Create("e", "1-3", Data().untied.folder, OptimizerFlags(Sgd()));
  ReferenceRun reference(Data().untied, Data().text, Sgd());
  std::vector<StepRecord> steps;
  for (const std::string flag : {"1", "2", "1", "4", "2"}) {
    const Flags flags = {"--accumulate=" + flag};
    const std::vector<StepRecord> step = cli().Train("e", {Data().text.path, 1, 4, kSeq, flags});
    steps.insert(steps.end(), step.begin(), step.end());
  }
  ExpectSteps(steps, reference.Train(5, 4));
  const nlohmann::json trace = cli().ctl().MustRun({"engine", "trace", "e"}).json();
  std::vector<std::string> kinds;
  for (const nlohmann::json& pass : trace["passes"]) {
    kinds.push_back(pass["kind"]);
    EXPECT_EQ(pass["records"], 1) << pass["kind"];
    EXPECT_EQ(pass["state"], "AGREED");
  }
  EXPECT_EQ(kinds, (std::vector<std::string>{"train", "train accumulate=2", "train accumulate=4"}));
}

// A .u32.bin file is read like a .u16.bin file.
TEST_F(Parity, Train_WideTokens_MatchesPlainTorch) {
  cli().Create("e", "0-1", Data().untied.folder, OptimizerFlags(Sgd()));
  ReferenceRun reference(Data().untied, Data().other_text, Sgd());
  ExpectSteps(cli().Train("e", {Data().other_text.path, 2, 3, kSeq, {}}), reference.Train(2, 3));
}

// Weights that are not finite on one rank's shard: every rank skips the step, and says so.
TEST_F(Parity, Train_NonFiniteGradients_AreSkippedAndChangeNothing) {
  LlamaFixture model;
  model.folder = DataPath("poisoned");
  model.weights = Data().untied.weights;
  std::vector<float> norm = ToFloats(model.weights["model.layers.1.input_layernorm.weight"]);
  norm[3] = std::numeric_limits<float>::quiet_NaN();
  model.weights["model.layers.1.input_layernorm.weight"] = FromFloats({64}, norm);
  WriteModel(model.folder, ConfigOf(model.shape), model.weights);
  cli().Create("e", "0-2", model.folder, OptimizerFlags(AdamW()));
  for (const StepRecord& step : cli().Train("e", {Data().text.path, 3, 4, kSeq, {}})) {
    EXPECT_TRUE(step.skipped);
    EXPECT_EQ(step.step, 0);
    // Backward has spread it to all of them.
    EXPECT_EQ(step.reason, "non-finite gradient in model.embed_tokens, in the shard of rank 0");
  }
  const nlohmann::json row = cli().Row("e");
  EXPECT_EQ(row["state"], "READY");
  EXPECT_EQ(row["step"], 0);
  EXPECT_EQ(row["dataPosition"], 3) << "batches that were drawn";
  EXPECT_EQ(row["weightsVersion"], 1);
  EXPECT_EQ(Differences(cli().Export("e"), model.weights), std::vector<std::string>{});
}

// Each row's gradient overflows on the one rank that has it; the next batch is fine.
TEST_F(Parity, Train_OneOverflowingBatch_IsSkippedAndTheNextIsNot) {
  std::vector<MlpRow> rows = RandomMlpRows(8, kMlpIn, kMlpOut, 31);
  rows[1].y[0] = 3e38F;
  const std::string path = DataPath("overflow.jsonl");
  WriteMlpRows(path, rows);
  cli().Create("e", "0-3", kMlpSpec, OptimizerFlags(Sgd(0.01)));
  const std::vector<StepRecord> steps = cli().Train("e", {path, 2, 4, 0, {}});
  ASSERT_EQ(steps.size(), 2u);
  EXPECT_TRUE(steps[0].skipped);
  EXPECT_EQ(steps[0].step, 0);
  EXPECT_FALSE(steps[1].skipped);
  EXPECT_EQ(steps[1].step, 1);
}

// The names that transformers 5 writes, sizes that are derived, and files behind an index.
TEST_F(Parity, Train_NewerConfigAndIndexedFiles_MatchesPlainTorch) {
  LlamaFixture model;
  model.folder = DataPath("newer");
  model.shape.kv_heads = 4;
  model.shape.rope_theta = 5000;
  model.weights = RandomWeights(model.shape, 9);
  nlohmann::json config = ConfigOf(model.shape);
  for (const char* name :
       {"rope_theta", "rope_scaling", "torch_dtype", "head_dim", "num_key_value_heads"}) {
    config.erase(name);
  }
  config["dtype"] = "float32";
  config["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 5000.0}};
  WriteModel(model.folder, config, {});
  TensorMap parts[2];
  nlohmann::json index = {{"metadata", {{"total_size", 1}}},
                          {"weight_map", nlohmann::json::object()}};
  int64_t count = 0;
  for (const auto& [name, tensor] : model.weights) {
    const int64_t part = count++ % 2;
    parts[part][name] = tensor;
    index["weight_map"][name] = absl::StrCat("model-0000", part + 1, "-of-00002.safetensors");
  }
  for (int part = 0; part < 2; ++part) {
    WriteFile(absl::StrCat(model.folder, "/model-0000", part + 1, "-of-00002.safetensors"),
              EncodeSafetensors(parts[part]));
  }
  WriteFile(model.folder + "/model.safetensors.index.json", index.dump());
  std::filesystem::remove(model.folder + "/model.safetensors");

  cli().Create("e", "1-3", model.folder, OptimizerFlags(Sgd()));
  EXPECT_EQ(Differences(cli().Export("e"), model.weights), std::vector<std::string>{});
  ReferenceRun reference(model, Data().text, Sgd());
  ExpectSteps(cli().Train("e", {Data().text.path, 2, 4, kSeq, {}}), reference.Train(2, 4));
}

}  // namespace
}  // namespace regroup::harness
