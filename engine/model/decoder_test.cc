#include "engine/model/decoder.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <memory>

#include "engine/model/test_models.h"

namespace regroup {
namespace {

// The same network from its formulas, one head at a time, in plain tensor operations: nothing of
// decoder.cc.
class Reference {
 public:
  Reference(DecoderConfig config, const NamedTensors& weights) : config_(config) {
    for (const auto& [name, value] : weights) {
      weights_[name] = value.clone().set_requires_grad(true);
    }
  }

  // tokens int64 [T] -> [T, vocab].
  at::Tensor Logits(const at::Tensor& tokens) const {
    at::Tensor x = Weight("model.embed_tokens").index_select(0, tokens);
    for (int64_t i = 0; i < config_.num_layers; ++i) {
      const std::string layer = "model.layers." + std::to_string(i) + ".";
      x = x + Attention(Norm(x, layer + "input_layernorm"), layer + "self_attn.");
      const at::Tensor h = Norm(x, layer + "post_attention_layernorm");
      const at::Tensor gate = at::matmul(h, Weight(layer + "mlp.gate_proj").t());
      const at::Tensor up = at::matmul(h, Weight(layer + "mlp.up_proj").t());
      x = x + at::matmul(gate * at::sigmoid(gate) * up, Weight(layer + "mlp.down_proj").t());
    }
    return at::matmul(Norm(x, "model.norm"),
                      Weight(config_.tie_word_embeddings ? "model.embed_tokens" : "lm_head").t());
  }

  at::Tensor LossSum(const Batch& batch) const {
    at::Tensor loss = at::zeros({});
    for (int64_t r = 0; r < batch.inputs.size(0); ++r) {
      const at::Tensor scores = at::log_softmax(Logits(batch.inputs[r]), -1);
      for (int64_t t = 0; t < batch.inputs.size(1); ++t) {
        const int64_t target = batch.targets[r][t].item<int64_t>();
        if (target != -100) loss = loss - scores[t][target];
      }
    }
    return loss;
  }

  at::Tensor Gradient(const std::string& name) const { return weights_.at(name).grad(); }

 private:
  const at::Tensor& Weight(const std::string& name) const { return weights_.at(name + ".weight"); }

  // x [T, in] -> [T, out], with the bias if there is one.
  at::Tensor Project(const at::Tensor& x, const std::string& name) const {
    const at::Tensor y = at::matmul(x, Weight(name).t());
    const auto bias = weights_.find(name + ".bias");
    return bias == weights_.end() ? y : y + bias->second;
  }

  at::Tensor Norm(const at::Tensor& x, const std::string& name) const {
    const at::Tensor scale = (x.square().mean(-1, true) + config_.rms_norm_eps).sqrt();
    return x / scale * Weight(name);
  }

  // Stretches wavelengths as Llama 3.1 does.
  double Scaled(double frequency) const {
    if (!config_.rope.llama3.has_value()) return frequency;
    const Llama3Scaling& llama3 = *config_.rope.llama3;
    const double turns =
        static_cast<double>(llama3.original_max_positions) * frequency / (2 * M_PI);
    const double kept =
        (turns - llama3.low_freq_factor) / (llama3.high_freq_factor - llama3.low_freq_factor);
    const double share = std::min(1.0, std::max(0.0, kept));
    return frequency * (share + (1 - share) / llama3.factor);
  }

  // x [T, d]: turns the pair (i, i + d/2) by position * theta^(-2i/d).
  at::Tensor Turn(const at::Tensor& x) const {
    const int64_t d = config_.head_dim;
    std::vector<at::Tensor> first, second;
    for (int64_t i = 0; i < d / 2; ++i) {
      const double frequency = Scaled(
          std::pow(config_.rope.theta, -2.0 * static_cast<double>(i) / static_cast<double>(d)));
      const at::Tensor angle = (at::arange(x.size(0), at::kDouble) * frequency);
      const at::Tensor c = angle.cos().to(at::kFloat), s = angle.sin().to(at::kFloat);
      const at::Tensor a = x.select(1, i), b = x.select(1, i + d / 2);
      first.push_back(a * c - b * s);
      second.push_back(b * c + a * s);
    }
    return at::cat({at::stack(first, 1), at::stack(second, 1)}, 1);
  }

  at::Tensor Attention(const at::Tensor& x, const std::string& name) const {
    const int64_t t = x.size(0), d = config_.head_dim;
    const at::Tensor q = Project(x, name + "q_proj");
    const at::Tensor k = Project(x, name + "k_proj");
    const at::Tensor v = Project(x, name + "v_proj");
    const auto turned = [&](const at::Tensor& all, int64_t head, const std::string& norm) {
      const at::Tensor one = all.narrow(1, head * d, d);
      return Turn(config_.qk_norm ? Norm(one, name + norm) : one);
    };
    const at::Tensor future = at::full({t, t}, -INFINITY).triu(1);
    std::vector<at::Tensor> heads;
    for (int64_t h = 0; h < config_.num_heads; ++h) {
      const int64_t shared = h / (config_.num_heads / config_.num_kv_heads);
      const at::Tensor scores =
          at::matmul(turned(q, h, "q_norm"), turned(k, shared, "k_norm").t()) /
          std::sqrt(static_cast<double>(d));
      heads.push_back(at::matmul((scores + future).softmax(-1), v.narrow(1, shared * d, d)));
    }
    return Project(at::cat(heads, 1), name + "o_proj");
  }

  DecoderConfig config_;
  std::map<std::string, at::Tensor> weights_;
};

DecoderConfig ConfigOf(const std::map<std::string, std::string>& changes) {
  return ParseDecoderConfig(ParseConfigFile("c", SmallLlamaConfig(changes)).value()).value();
}

Batch RandomBatch(int64_t rows, int64_t seq, int64_t vocab) {
  Batch batch;
  batch.inputs = at::randint(vocab, {rows, seq}, at::kLong);
  batch.targets = at::randint(vocab, {rows, seq}, at::kLong);
  return batch;
}

// Weights large enough that attention is far from uniform.
NamedTensors BigWeights(const ParamTable& table) {
  NamedTensors weights = SmallWeights(table, 11);
  for (auto& [name, value] : weights) {
    if (value.dim() > 1) value *= 8;
  }
  return weights;
}

class DecoderFormsTest : public testing::TestWithParam<std::map<std::string, std::string>> {};

TEST_P(DecoderFormsTest, LossSum_RandomWeights_EqualsTheReferenceWithAllGradients) {
  const DecoderConfig config = ConfigOf(GetParam());
  const Decoder decoder(config, DType::kFp32);
  const NamedTensors weights = BigWeights(decoder.table());
  LeafRunner runner(decoder.table(), weights, /*requires_grad=*/true);
  const Reference reference(config, weights);
  Batch batch = RandomBatch(3, 13, config.vocab_size);
  batch.targets[1].slice(0, 4, 9).fill_(-100);

  const at::Tensor loss = decoder.LossSum(runner, batch);
  const at::Tensor expected = reference.LossSum(batch);
  EXPECT_NEAR(loss.item<double>() / expected.item<double>(), 1, 1e-5);
  loss.backward();
  expected.backward();
  for (const Parameter& parameter : decoder.table().parameters()) {
    const at::Tensor gradient = runner.parameter(parameter.id).grad();
    const at::Tensor wanted = reference.Gradient(parameter.name);
    ASSERT_TRUE(gradient.defined()) << parameter.name;
    const double scale = wanted.abs().max().item<double>();
    EXPECT_GT(scale, 0) << parameter.name;
    EXPECT_LT((gradient - wanted).abs().max().item<double>(), 2e-4 * scale) << parameter.name;
  }
}

TEST_P(DecoderFormsTest, LossSum_NoRows_RunsTheSameUnitsWithZeroLossAndGradients) {
  const Decoder decoder(ConfigOf(GetParam()), DType::kFp32);
  const NamedTensors weights = SmallWeights(decoder.table(), 1);
  LeafRunner none(decoder.table(), weights, true), some(decoder.table(), weights, true);
  const at::Tensor loss = decoder.LossSum(none, RandomBatch(0, 7, 257));
  decoder.LossSum(some, RandomBatch(2, 7, 257));
  EXPECT_EQ(none.units_run(), some.units_run());
  EXPECT_EQ(loss.item<double>(), 0);
  loss.backward();
  for (const Parameter& parameter : decoder.table().parameters()) {
    const at::Tensor gradient = none.parameter(parameter.id).grad();
    ASSERT_TRUE(gradient.defined()) << parameter.name;
    EXPECT_EQ(gradient.abs().max().item<double>(), 0) << parameter.name;
  }
}

TEST_P(DecoderFormsTest, LossSum_NoCountedTarget_IsZeroWithZeroGradients) {
  const Decoder decoder(ConfigOf(GetParam()), DType::kFp32);
  LeafRunner runner(decoder.table(), SmallWeights(decoder.table(), 1), true);
  Batch batch = RandomBatch(2, 5, 257);
  batch.targets.fill_(-100);
  const at::Tensor loss = decoder.LossSum(runner, batch);
  EXPECT_EQ(loss.item<double>(), 0);
  loss.backward();
  EXPECT_EQ(runner.parameter(0).grad().abs().max().item<double>(), 0);
}

// Logits of the last token of `tokens`, however they are cut into calls.
TEST_P(DecoderFormsTest, NextLogits_AnyCutOfTheTokens_EqualsTheFullContext) {
  const at::NoGradGuard no_grad;
  const DecoderConfig config = ConfigOf(GetParam());
  const Decoder decoder(config, DType::kFp32);
  const NamedTensors weights = BigWeights(decoder.table());
  LeafRunner runner(decoder.table(), weights, false);
  const at::Tensor tokens = at::randint(config.vocab_size, {1, 12}, at::kLong);
  const at::Tensor expected = Reference(config, weights).Logits(tokens[0]);
  for (const std::vector<int64_t>& cut : std::vector<std::vector<int64_t>>{
           {12}, {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1}, {5, 1, 6}, {1, 11}, {4, 4, 4}}) {
    KvCache cache = decoder.MakeCache(12);
    for (const int64_t count : cut) {
      const at::Tensor logits =
          decoder.NextLogits(runner, tokens.narrow(1, cache.length, count), &cache);
      ASSERT_EQ(logits.sizes(), (std::vector<int64_t>{1, config.vocab_size}));
      EXPECT_LT((logits[0] - expected[cache.length - 1]).abs().max().item<double>(), 1e-5)
          << "after " << cache.length << " tokens";
    }
    EXPECT_EQ(cache.length, 12);
    EXPECT_THROW(decoder.NextLogits(runner, tokens.narrow(1, 0, 1), &cache), std::exception);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Forms, DecoderFormsTest,
    testing::Values(std::map<std::string, std::string>{},
                    std::map<std::string, std::string>{{"tie_word_embeddings", "true"}},
                    std::map<std::string, std::string>{{"num_key_value_heads", "4"}},
                    std::map<std::string, std::string>{{"num_key_value_heads", "1"},
                                                       {"head_dim", "32"},
                                                       {"rope_theta", "100.0"},
                                                       {"rms_norm_eps", "0.01"}},
                    std::map<std::string, std::string>{{"attention_bias", "true"}},
                    std::map<std::string, std::string>{{"model_type", "\"qwen2\""}},
                    std::map<std::string, std::string>{{"model_type", "\"qwen3\""},
                                                       {"head_dim", "24"},
                                                       {"tie_word_embeddings", "true"}},
                    std::map<std::string, std::string>{
                        {"rope_scaling",
                         R"({"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0,
                             "high_freq_factor": 4.0, "original_max_position_embeddings": 16})"}}));

TEST(DecoderTest, Table_Untied_HasTheUnitsAndSizesOfTheFamily) {
  const Decoder decoder(ConfigOf({}), DType::kFp32);
  const ParamTable& table = decoder.table();
  EXPECT_EQ(table.total_numel(), 119232);
  ASSERT_EQ(table.units().size(), 4u);
  EXPECT_EQ(table.unit(0).name, "model.embed_tokens");
  EXPECT_EQ(table.unit(1).name, "model.layers.0");
  EXPECT_EQ(table.unit(3).name, "lm_head");
  EXPECT_EQ(table.unit(3).parameters.size(), 2u);
  EXPECT_EQ(table.Find("model.layers.1.self_attn.k_proj.weight")->shape,
            (std::vector<int64_t>{32, 64}));
  EXPECT_EQ(table.Find("lm_head.weight")->shape, (std::vector<int64_t>{257, 64}));
  EXPECT_EQ(Decoder(ConfigOf({{"num_key_value_heads", "4"}}), DType::kFp32).table().total_numel(),
            127424);
}

TEST(DecoderTest, Table_Tied_HasTheWeightOnceAndUsesItsUnitTwice) {
  const Decoder decoder(ConfigOf({{"tie_word_embeddings", "true"}}), DType::kFp32);
  EXPECT_EQ(decoder.table().total_numel(), 119232 - 257 * 64);
  EXPECT_EQ(decoder.table().Find("lm_head.weight"), nullptr);
  EXPECT_EQ(decoder.table().units().back().name, "model.norm");
  LeafRunner runner(decoder.table(), SmallWeights(decoder.table(), 1), false);
  decoder.LossSum(runner, RandomBatch(1, 3, 257));
  EXPECT_EQ(runner.units_run(), (std::vector<int>{0, 1, 2, 3, 0}));
}

TEST(DecoderTest, LossSum_ManyRows_IsTheSumOfTheRows) {
  const Decoder decoder(ConfigOf({}), DType::kFp32);
  LeafRunner runner(decoder.table(), SmallWeights(decoder.table(), 1), false);
  const Batch batch = RandomBatch(5, 64, 257);
  double sum = 0;
  for (int64_t r = 0; r < 5; ++r) {
    sum += decoder.LossSum(runner, {batch.inputs.narrow(0, r, 1), batch.targets.narrow(0, r, 1)})
               .item<double>();
  }
  EXPECT_NEAR(decoder.LossSum(runner, batch).item<double>() / sum, 1, 1e-6);
}

constexpr char kLlama3[] = R"({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
    "high_freq_factor": 4.0, "original_max_position_embeddings": 32})";
constexpr char kOtherLlama3[] = R"({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 2.0,
    "high_freq_factor": 4.0, "original_max_position_embeddings": 32})";

TEST(DecoderTest, Table_OfTheFamilies_HasTheNamesOfTransformers) {
  const auto layer_names = [](const std::map<std::string, std::string>& changes) {
    const Decoder decoder(ConfigOf(changes), DType::kFp32);
    std::vector<std::string> names;
    for (const int id : decoder.table().unit(1).parameters) {
      names.push_back(decoder.table().parameter(id).name.substr(strlen("model.layers.0.")));
    }
    return names;
  };
  EXPECT_EQ(
      layer_names({{"model_type", "\"qwen2\""}}),
      (std::vector<std::string>{
          "input_layernorm.weight", "self_attn.q_proj.weight", "self_attn.q_proj.bias",
          "self_attn.k_proj.weight", "self_attn.k_proj.bias", "self_attn.v_proj.weight",
          "self_attn.v_proj.bias", "self_attn.o_proj.weight", "post_attention_layernorm.weight",
          "mlp.gate_proj.weight", "mlp.up_proj.weight", "mlp.down_proj.weight"}));
  EXPECT_EQ(layer_names({{"model_type", "\"qwen3\""}}),
            (std::vector<std::string>{
                "input_layernorm.weight", "self_attn.q_proj.weight", "self_attn.k_proj.weight",
                "self_attn.v_proj.weight", "self_attn.q_norm.weight", "self_attn.k_norm.weight",
                "self_attn.o_proj.weight", "post_attention_layernorm.weight",
                "mlp.gate_proj.weight", "mlp.up_proj.weight", "mlp.down_proj.weight"}));
}

TEST(DecoderTest, Decode_SeveralRows_IsBitwiseEachRowAloneAndRunsEachUnitOnce) {
  const at::NoGradGuard no_grad;
  const Decoder decoder(ConfigOf({{"tie_word_embeddings", "true"}}), DType::kFp32);
  const NamedTensors weights = BigWeights(decoder.table());
  LeafRunner alone(decoder.table(), weights, false), together(decoder.table(), weights, false);
  const std::vector<at::Tensor> tokens = {at::randint(257, {1, 5}, at::kLong),
                                          at::randint(257, {1, 1}, at::kLong),
                                          at::randint(257, {1, 9}, at::kLong)};
  std::vector<KvCache> caches, own_caches;
  for (size_t i = 0; i < tokens.size(); ++i) {
    caches.push_back(decoder.MakeCache(12));
    own_caches.push_back(decoder.MakeCache(12));
  }
  for (int pass = 0; pass < 2; ++pass) {
    std::vector<DecodeRow> rows;
    for (size_t i = 0; i < tokens.size(); ++i) {
      rows.push_back({pass == 0 ? tokens[i] : tokens[1], &caches[i]});
    }
    size_t seen = 0;
    decoder.Decode(together, rows, [&](size_t i, const at::Tensor& logits) {
      EXPECT_EQ(i, seen++);
      EXPECT_TRUE(logits.equal(decoder.NextLogits(alone, rows[i].tokens, &own_caches[i])));
    });
    EXPECT_EQ(seen, 3u);
    EXPECT_EQ(caches[2].length, pass == 0 ? 9 : 10);
  }
  EXPECT_EQ(together.units_run(), (std::vector<int>{0, 1, 2, 3, 0, 0, 1, 2, 3, 0}));
  LeafRunner none(decoder.table(), weights, false);
  decoder.Decode(none, {}, [](size_t, const at::Tensor&) { ADD_FAILURE(); });
  EXPECT_EQ(none.units_run(), (std::vector<int>{0, 1, 2, 3, 0}));
}

// The biases of a random model are 0 and its norms 1.
TEST(DecoderTest, Define_Initial_GivesBiasesZeroAndNormsOne) {
  const ConfigFile config =
      ParseConfigFile("c",
                      SmallLlamaConfig({{"model_type", "\"qwen3\""}, {"attention_bias", "true"}}))
          .value();
  const ModelDefinition defined = Decoder::Define(config, DType::kFp32).value();
  for (const Parameter& parameter : defined.model->table().parameters()) {
    const at::Tensor value =
        defined.initial(parameter, at::make_generator<at::CPUGeneratorImpl>(1));
    const bool bias = parameter.name.find(".bias") != std::string::npos;
    if (parameter.shape.size() > 1) {
      EXPECT_NEAR(value.std().item<double>(), 0.02, 0.002) << parameter.name;
    } else {
      EXPECT_TRUE(value.equal(at::full(parameter.shape, bias ? 0.0 : 1.0))) << parameter.name;
    }
  }
}

TEST(DecoderTest, Signature_WhatNoTableShows_IsInIt) {
  const std::string signature = Decoder(ConfigOf({}), DType::kFp32).Signature();
  for (const auto& [field, value] :
       std::vector<std::pair<std::string, std::string>>{{"rms_norm_eps", "1e-3"},
                                                        {"rope_theta", "123"},
                                                        {"tie_word_embeddings", "true"},
                                                        {"num_attention_heads", "8"},
                                                        {"rope_scaling", kLlama3},
                                                        {"rope_scaling", kOtherLlama3}}) {
    const Decoder other(ConfigOf({{field, value}, {"head_dim", "8"}}), DType::kFp32);
    const Decoder same(ConfigOf({{"head_dim", "8"}}), DType::kFp32);
    EXPECT_NE(other.Signature(), same.Signature()) << field;
  }
  EXPECT_EQ(Decoder(ConfigOf({{"eos_token_id", "9"}}), DType::kFp32).Signature(), signature);
}

TEST(DecoderTest, ActivationBytes_GrowWithTheBatchAndSaturate) {
  const Decoder decoder(ConfigOf({}), DType::kFp32);
  EXPECT_EQ(decoder.ActivationBytes(3, 5), 15 * (2 * 257 + 2 * 64 * 16) * 4);
  EXPECT_EQ(decoder.RecomputedActivationBytes(3, 5), 15 * (2 * 257 + (2 + 16) * 64) * 4);
  EXPECT_EQ(decoder.ActivationBytes(int64_t{1} << 62, 1 << 20), INT64_MAX);
}

}  // namespace
}  // namespace regroup
