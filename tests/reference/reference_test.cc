// Holds the reference itself against numbers of another implementation: golden.py printed them,
// with transformers 5.23.0 and torch 2.11.0 on one thread. The largest relative deviation was under
// 5e-7.
#include "tests/reference/reference.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace regroup::reference {
namespace {

constexpr int64_t kVocab = 257;
constexpr int64_t kSeq = 16;
constexpr int64_t kBatch = 3;

class Draws {
 public:
  explicit Draws(uint64_t seed) : state_(seed) {}

  uint64_t Bits() {
    state_ = state_ * 6364136223846793005ULL + 1442695040888963407ULL;
    return state_ >> 40;
  }

  at::Tensor Uniform(const std::vector<int64_t>& shape) {  // in [-1, 1)
    at::Tensor tensor = at::empty(shape, at::kFloat);
    float* values = tensor.mutable_data_ptr<float>();
    for (int64_t i = 0; i < tensor.numel(); ++i) {
      values[i] = static_cast<float>(static_cast<double>(Bits()) / 8388608.0 - 1);
    }
    return tensor;
  }

 private:
  uint64_t state_;
};

Llama Model(bool tied) {
  Llama model;
  model.layers = 2;
  model.heads = 4;
  model.kv_heads = 2;
  model.head_dim = 16;
  model.tied = tied;
  return model;
}

Weights LlamaWeights(bool tied) {
  std::map<std::string, std::vector<int64_t>> shapes = {{"model.embed_tokens.weight", {kVocab, 64}},
                                                        {"model.norm.weight", {64}}};
  if (!tied) shapes["lm_head.weight"] = {kVocab, 64};
  for (const std::string layer : {"model.layers.0.", "model.layers.1."}) {
    shapes[layer + "input_layernorm.weight"] = {64};
    shapes[layer + "post_attention_layernorm.weight"] = {64};
    shapes[layer + "self_attn.q_proj.weight"] = {64, 64};
    shapes[layer + "self_attn.k_proj.weight"] = {32, 64};
    shapes[layer + "self_attn.v_proj.weight"] = {32, 64};
    shapes[layer + "self_attn.o_proj.weight"] = {64, 64};
    shapes[layer + "mlp.gate_proj.weight"] = {160, 64};
    shapes[layer + "mlp.up_proj.weight"] = {160, 64};
    shapes[layer + "mlp.down_proj.weight"] = {64, 160};
  }
  Draws draws(1);
  Weights weights;
  for (const auto& [name, shape] : shapes) {
    const at::Tensor drawn = draws.Uniform(shape);
    weights[name] = shape.size() == 1 ? 1 + 0.1 * drawn : 0.05 * drawn;
  }
  return weights;
}

std::vector<int64_t> Tokens(int64_t count) {
  Draws draws(2);
  std::vector<int64_t> tokens(count);
  for (int64_t& token : tokens) token = static_cast<int64_t>(draws.Bits() % kVocab);
  return tokens;
}

double SumOfMagnitudes(const Weights& weights) {
  double sum = 0;
  for (const auto& [name, weight] : weights) {
    sum += weight.detach().to(at::kDouble).abs().sum().item<double>();
  }
  return sum;
}

void ExpectNear(double value, double expected, double relative) {
  EXPECT_NEAR(value, expected, relative * std::abs(expected));
}

void ExpectSteps(Trainer& trainer, const std::function<LossFunction(int64_t)>& loss_of_step,
                 const std::vector<Step>& expected, double magnitudes) {
  for (size_t i = 0; i < expected.size(); ++i) {
    const Step step = trainer.TrainStep(loss_of_step(static_cast<int64_t>(i)));
    ExpectNear(step.loss, expected[i].loss, 2e-6);
    ExpectNear(step.grad_norm, expected[i].grad_norm, 2e-6);
  }
  ExpectNear(SumOfMagnitudes(trainer.weights()), magnitudes, 1e-6);
}

std::function<LossFunction(int64_t)> LossOfSteps(const Llama& model) {
  const std::vector<int64_t> tokens = Tokens(3 * kBatch * kSeq + 1);
  const int64_t rows = (static_cast<int64_t>(tokens.size()) - 1) / kSeq;
  return [=](int64_t step) -> LossFunction {
    const TokenBatch batch = CutTokens(tokens, kSeq, BatchRows(step, kBatch, rows));
    return [=](const Weights& weights) {
      return LlamaLoss(model, weights, batch.inputs, batch.targets);
    };
  };
}

void ExpectGreedy(const Llama& model, const Weights& weights, const std::vector<int64_t>& tokens,
                  double logprobs) {
  const Continuation result = GenerateGreedy(model, weights, Tokens(7), 12);
  EXPECT_EQ(result.tokens, tokens);
  double sum = 0;
  for (const double logprob : result.logprobs) sum += logprob;
  ExpectNear(sum, logprobs, 2e-6);
}

TEST(Reference, Llama_AdamWWithClipping_MatchesTransformers) {
  const Llama model = Model(/*tied=*/false);
  const Weights weights = LlamaWeights(false);
  ExpectGreedy(model, weights, {29, 174, 29, 62, 175, 147, 29, 174, 237, 150, 124, 169},
               -59.8297777);

  TrainOptions options;
  options.learning_rate = 1e-3;
  options.clip_norm = 0.5;
  Trainer trainer(weights, options);
  ExpectSteps(trainer, LossOfSteps(model),
              {{5.60882759, 2.40070558}, {5.57457352, 2.47354174}, {5.58001757, 2.35753655}},
              3291.75200089);
  ExpectGreedy(model, trainer.weights(), {18, 18, 18, 18, 18, 18, 18, 18, 18, 18, 29, 18},
               -59.1329021);
}

TEST(Reference, Llama_AdamWithDecayInTheGradient_MatchesTransformers) {
  TrainOptions options;
  options.optimizer = Optimizer::kAdam;
  options.learning_rate = 2e-4;
  options.weight_decay = 0.1;
  Trainer trainer(LlamaWeights(false), options);
  ExpectSteps(trainer, LossOfSteps(Model(/*tied=*/false)),
              {{5.60882759, 2.40070558}, {5.56799269, 2.46608138}, {5.57029581, 2.35452247}},
              3245.47338751);
}

TEST(Reference, TiedLlama_SgdWithMomentumAndDecay_MatchesTransformers) {
  const Llama model = Model(/*tied=*/true);
  TrainOptions options;
  options.optimizer = Optimizer::kSgd;
  options.learning_rate = 0.1;
  options.momentum = 0.9;
  options.weight_decay = 0.01;
  Trainer trainer(LlamaWeights(true), options);
  ExpectSteps(trainer, LossOfSteps(model),
              {{5.60729742, 2.27046275}, {5.61453247, 2.32592297}, {5.56283236, 2.50493789}},
              2869.18840083);
  ExpectGreedy(model, trainer.weights(), std::vector<int64_t>(12, 70), -54.6858978);
}

TEST(Reference, Llama_Bf16WithFp32Master_MatchesTransformers) {
  TrainOptions options;
  options.learning_rate = 1e-2;
  options.bf16 = true;
  Trainer trainer(LlamaWeights(false), options);
  const auto loss_of_step = LossOfSteps(Model(/*tied=*/false));
  const std::vector<double> expected = {5.60942, 5.6033, 5.64471};
  for (size_t i = 0; i < expected.size(); ++i) {
    ExpectNear(trainer.TrainStep(loss_of_step(static_cast<int64_t>(i))).loss, expected[i], 2e-3);
  }
}

TEST(Reference, Mlp_Sgd_MatchesTorch) {
  Draws draws(1);
  Weights weights;
  weights["layers.0.bias"] = 0.5 * draws.Uniform({7});
  weights["layers.0.weight"] = 0.5 * draws.Uniform({7, 5});
  weights["layers.1.bias"] = 0.5 * draws.Uniform({3});
  weights["layers.1.weight"] = 0.5 * draws.Uniform({3, 7});
  Draws data(2);
  const at::Tensor inputs = data.Uniform({4, 5});
  const at::Tensor targets = data.Uniform({4, 3});
  TrainOptions options;
  options.optimizer = Optimizer::kSgd;
  options.learning_rate = 0.1;
  options.weight_decay = 0;
  Trainer trainer(weights, options);
  ExpectSteps(
      trainer,
      [&](int64_t) -> LossFunction {
        return [&](const Weights& live) { return MlpLoss(2, live, inputs, targets); };
      },
      {{0.722740233, 1.063007}, {0.615214944, 0.96094662}, {0.527261436, 0.86999166}},
      15.4087804854);
}

}  // namespace
}  // namespace regroup::reference
