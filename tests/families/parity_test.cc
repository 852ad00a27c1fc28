// Small models of each family against what transformers and torch.optim computed with the same
// weights (golden.py).
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>

#include "engine/data/dataset.h"
#include "engine/infer/resident_runner.h"
#include "engine/model/test_models.h"
#include "tests/families/engine_run.h"

namespace regroup {
namespace {

using nlohmann::json;

constexpr int64_t kVocab = 257, kSeq = 16, kBatch = 3, kSteps = 3, kPrompt = 7;

// The generator of golden.py.
class Draws {
 public:
  explicit Draws(uint64_t seed) : state_(seed) {}

  int64_t Bits() {
    state_ = state_ * 6364136223846793005 + 1442695040888963407;
    return static_cast<int64_t>(state_ >> 40);
  }

  at::Tensor Tensor(const std::vector<int64_t>& shape) {
    at::Tensor values = at::empty(shape);
    float* data = values.data_ptr<float>();
    for (int64_t i = 0; i < values.numel(); ++i) {
      data[i] = static_cast<float>(static_cast<double>(Bits()) / (1 << 23) - 1);
    }
    return values;
  }

 private:
  uint64_t state_;
};

std::vector<int64_t> Tokens(int64_t count) {
  Draws draws(2);
  std::vector<int64_t> tokens;
  for (int64_t i = 0; i < count; ++i) tokens.push_back(draws.Bits() % kVocab);
  return tokens;
}

// In the order of the names, as golden.py fills them.
NamedTensors Weights(const ParamTable& table) {
  std::vector<const Parameter*> sorted;
  for (const Parameter& parameter : table.parameters()) sorted.push_back(&parameter);
  std::sort(sorted.begin(), sorted.end(),
            [](const Parameter* a, const Parameter* b) { return a->name < b->name; });
  Draws draws(1);
  NamedTensors weights;
  for (const Parameter* parameter : sorted) {
    const bool bias = parameter->name.find(".bias") != std::string::npos;
    const bool norm = parameter->shape.size() == 1 && !bias;
    at::Tensor value = draws.Tensor(parameter->shape).mul_(bias ? 0.3 : norm ? 0.1 : 0.2);
    if (norm) value.add_(1);
    weights.emplace_back(parameter->name, value);
  }
  return weights;
}

json Golden() {
  std::ifstream file("tests/families/golden.json");
  return json::parse(file);
}

class ParityTest : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    for (const json& each : Golden()) {
      if (each["name"] == GetParam()) case_ = each;
    }
    ASSERT_FALSE(case_.is_null());
    const std::string config = case_["config"].dump();
    folder_.Write("config.json", config);
    folder_.Write("model.safetensors", SafetensorsBytes(Weights(ModelOf(config)->table())));
    folder_.Write("text.u16.bin", TokenBytes(Tokens(kSteps * kBatch * kSeq + 1)));
  }

  std::vector<int64_t> Prompt() const { return Tokens(kPrompt); }

  TempFolder folder_;
  json case_;
};

TEST_P(ParityTest, LogProbs_EqualThoseOfTransformers) {
  const at::NoGradGuard no_grad;
  LoadedModel loaded = Load(folder_.path());
  const EngineState state = InitialState(loaded);
  auto runner = ResidentRunner::Make(loaded.model->table(), state);
  ASSERT_TRUE(runner.ok()) << runner.status();
  const std::vector<int64_t> row = Tokens(kSteps * kBatch * kSeq / 3);
  KvCache cache = loaded.model->MakeCache(static_cast<int64_t>(row.size()));
  at::Tensor logprobs;
  for (size_t i = 0; i < row.size(); ++i) {
    const at::Tensor token = at::tensor(std::vector<int64_t>{row[i]}).reshape({1, 1});
    logprobs = at::log_softmax(loaded.model->NextLogits(*runner, token, &cache)[0], -1);
    if (i + 1 == row.size()) break;
    EXPECT_NEAR(logprobs[row[i + 1]].item<double>(), case_["logprobs"][i].get<double>(), 1e-4)
        << "position " << i;
  }
  for (int64_t token = 0; token < kVocab; ++token) {
    EXPECT_NEAR(logprobs[token].item<double>(), case_["last"][token].get<double>(), 1e-4);
  }
}

TEST_P(ParityTest, Greedy_TakesTheTokensOfTransformers) {
  LoadedModel loaded = Load(folder_.path());
  const auto expected = case_["tokens"].get<std::vector<int64_t>>();
  EXPECT_EQ(Generate(*loaded.model, InitialState(loaded), Prompt(),
                     static_cast<int64_t>(expected.size())),
            expected);
}

TEST_P(ParityTest, ThreeAdamWSteps_HaveItsLossesOnOneAndTwoRanks) {
  for (const std::vector<int>& ranks : {std::vector<int>{0}, std::vector<int>{2, 1}}) {
    const LoadedModel loaded = Load(folder_.path());
    const auto data = Dataset::Open(folder_.File("text.u16.bin"), kSeq, loaded.model->limits());
    ASSERT_TRUE(data.ok()) << data.status();
    EngineState trained;
    RunTrainers(ranks, AdamWSpec(1e-3), folder_.path(), [&](int rank, Trainer& trainer) {
      for (int64_t step = 0; step < kSteps; ++step) {
        const auto result = trainer.Step(**data, kBatch, 1);
        ASSERT_TRUE(result.ok()) << result.status();
        EXPECT_NEAR(result->loss / case_["losses"][step].get<double>(), 1, 1e-5) << step;
        EXPECT_NEAR(result->grad_norm / case_["norms"][step].get<double>(), 1, 1e-4) << step;
      }
      EngineState gathered = GatheredState(trainer, loaded.model->table(), rank);
      if (rank == ranks[0]) trained = std::move(gathered);
    });
    const auto expected = case_["trained"].get<std::vector<int64_t>>();
    EXPECT_EQ(Generate(*loaded.model, std::move(trained), Prompt(),
                       static_cast<int64_t>(expected.size())),
              expected);
  }
}

INSTANTIATE_TEST_SUITE_P(Families, ParityTest,
                         testing::Values("qwen2", "qwen3_tied", "qwen3_bias", "llama_rope_llama3"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace regroup
