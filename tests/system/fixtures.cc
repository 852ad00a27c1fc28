#include "tests/system/fixtures.h"

#include <ATen/ops/from_blob.h>
#include <ATen/ops/tensor.h>

#include <cmath>

#include "absl/strings/str_cat.h"

namespace regroup::harness {
namespace {

LlamaFixture WriteFixture(const std::string& folder, bool tied, uint32_t seed) {
  LlamaFixture fixture;
  fixture.folder = folder;
  fixture.shape.tied = tied;
  fixture.weights = WriteSmallLlama(folder, fixture.shape, seed);
  return fixture;
}

TokenFixture WriteText(const std::string& path, uint32_t seed) {
  TokenFixture text;
  text.path = path;
  text.tokens = RandomTokens(40 * kSeq + 1, SmallLlama{}.vocab, seed);
  WriteTokens(path, text.tokens);
  return text;
}

Fixtures* WriteAll() {
  auto* data = new Fixtures;
  data->root = NewFolder("data");
  data->untied = WriteFixture(data->root + "/l2", false, 1);
  data->tied = WriteFixture(data->root + "/l2t", true, 2);
  data->text = WriteText(data->root + "/text.u16.bin", 3);
  data->other_text = WriteText(data->root + "/other.u32.bin", 4);
  data->mlp_path = data->root + "/rows.jsonl";
  data->mlp_rows = RandomMlpRows(23, kMlpIn, kMlpOut, 5);
  WriteMlpRows(data->mlp_path, data->mlp_rows);
  return data;
}

}  // namespace

const Fixtures& Data() {
  static const Fixtures* const data = WriteAll();
  return *data;
}

void FixtureTest::StartDaemonOnFixtures(int ranks) {
  DaemonOptions options;
  options.ranks = ranks;
  options.data_root = Data().root;
  StartDaemon(options);
}

reference::Llama ReferenceOf(const SmallLlama& shape) {
  reference::Llama model;
  model.layers = shape.layers;
  model.heads = shape.heads;
  model.kv_heads = shape.kv_heads;
  model.head_dim = shape.head_dim;
  model.eps = shape.eps;
  model.rope_theta = shape.rope_theta;
  model.tied = shape.tied;
  return model;
}

reference::Weights ToWeights(const TensorMap& tensors) {
  reference::Weights weights;
  for (const auto& [name, tensor] : tensors) {
    std::vector<float> values = ToFloats(tensor);
    weights[name] = at::from_blob(values.data(), tensor.shape, at::kFloat).clone();
  }
  return weights;
}

reference::TrainOptions Sgd(double learning_rate) {
  reference::TrainOptions options;
  options.optimizer = reference::Optimizer::kSgd;
  options.learning_rate = learning_rate;
  options.weight_decay = 0;
  return options;
}

reference::TrainOptions AdamW(double learning_rate) {
  reference::TrainOptions options;
  options.learning_rate = learning_rate;
  return options;
}

reference::TrainOptions Adam(double learning_rate) {
  reference::TrainOptions options;
  options.optimizer = reference::Optimizer::kAdam;
  options.learning_rate = learning_rate;
  options.weight_decay = 0;
  return options;
}

Flags OptimizerFlags(const reference::TrainOptions& options) {
  Flags flags = {absl::StrCat("--lr=", options.learning_rate)};
  if (options.optimizer == reference::Optimizer::kSgd) {
    flags.emplace_back("--optimizer=sgd");
    if (options.momentum != 0) flags.push_back(absl::StrCat("--momentum=", options.momentum));
  } else {
    flags.emplace_back(options.optimizer == reference::Optimizer::kAdam ? "--optimizer=adam"
                                                                        : "--optimizer=adamw");
  }
  const bool adamw = options.optimizer == reference::Optimizer::kAdamW;
  if (options.weight_decay != (adamw ? 0.01 : 0)) {
    flags.push_back(absl::StrCat("--weight-decay=", options.weight_decay));
  }
  if (options.clip_norm != 0) flags.push_back(absl::StrCat("--clip-norm=", options.clip_norm));
  return flags;
}

ReferenceRun::ReferenceRun(const LlamaFixture& model, const TokenFixture& text,
                           const reference::TrainOptions& options)
    : model_(&model), text_(&text), trainer_(ToWeights(model.weights), options) {}

ReferenceRun::ReferenceRun(const TensorMap& mlp_weights, const reference::TrainOptions& options)
    : trainer_(ToWeights(mlp_weights), options) {}

reference::LossFunction ReferenceRun::NextLoss(int64_t batch) {
  const int64_t position = position_++;
  if (model_ != nullptr) {
    const int64_t rows = (static_cast<int64_t>(text_->tokens.size()) - 1) / kSeq;
    const reference::TokenBatch cut =
        reference::CutTokens(text_->tokens, kSeq, reference::BatchRows(position, batch, rows));
    return [cut, llama = ReferenceOf(model_->shape)](const reference::Weights& weights) {
      return reference::LlamaLoss(llama, weights, cut.inputs, cut.targets);
    };
  }
  std::vector<float> x;
  std::vector<float> y;
  const std::vector<MlpRow>& rows = Data().mlp_rows;
  for (const int64_t row :
       reference::BatchRows(position, batch, static_cast<int64_t>(rows.size()))) {
    x.insert(x.end(), rows[row].x.begin(), rows[row].x.end());
    y.insert(y.end(), rows[row].y.begin(), rows[row].y.end());
  }
  const at::Tensor inputs = at::tensor(x).view({batch, kMlpIn});
  const at::Tensor targets = at::tensor(y).view({batch, kMlpOut});
  return [inputs, targets](const reference::Weights& weights) {
    return reference::MlpLoss(kMlpLayers, weights, inputs, targets);
  };
}

std::vector<reference::Step> ReferenceRun::Train(int64_t steps, int64_t batch) {
  std::vector<reference::Step> result;
  for (int64_t i = 0; i < steps; ++i) result.push_back(trainer_.TrainStep(NextLoss(batch)));
  return result;
}

void ExpectSteps(const std::vector<StepRecord>& actual,
                 const std::vector<reference::Step>& expected, int64_t first) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_EQ(actual[i].step, first + static_cast<int64_t>(i));
    EXPECT_NEAR(actual[i].loss, expected[i].loss, 1e-5 * std::abs(expected[i].loss))
        << "step " << i;
    EXPECT_NEAR(actual[i].grad_norm, expected[i].grad_norm, 1e-5 * expected[i].grad_norm)
        << "step " << i;
    EXPECT_FALSE(actual[i].skipped);
  }
}

void ExpectWeights(const TensorMap& actual, const reference::Weights& expected,
                   const reference::TrainOptions& options, int64_t steps) {
  const bool sgd = options.optimizer == reference::Optimizer::kSgd;
  const double moved = options.learning_rate * static_cast<double>(steps);
  int64_t elements = 0;
  int64_t beyond = 0;
  double worst = 0;
  std::string where;
  ASSERT_EQ(actual.size(), expected.size());
  for (const auto& [name, weight] : expected) {
    ASSERT_EQ(actual.count(name), 1u) << name;
    EXPECT_EQ(actual.at(name).shape, weight.sizes().vec()) << name;
    const std::vector<float> values = ToFloats(actual.at(name));
    const at::Tensor flat = weight.detach().contiguous().view({-1});
    ASSERT_EQ(static_cast<int64_t>(values.size()), flat.numel()) << name;
    const float* wanted = flat.const_data_ptr<float>();
    for (size_t i = 0; i < values.size(); ++i) {
      const double difference = std::abs(double{values[i]} - double{wanted[i]});
      const float magnitude = std::abs(wanted[i]);
      const double ulp = std::nextafter(magnitude, INFINITY) - magnitude;
      ++elements;
      // Not <=: a NaN is beyond every bound.
      if (!(difference <= (sgd ? 5e-6 : 1e-3 * moved + 2 * ulp))) ++beyond;
      if (!(difference <= worst)) {
        worst = difference;
        where = absl::StrCat(name, "[", i, "]");
      }
    }
  }
  EXPECT_GE(elements, 10000);
  EXPECT_LE(beyond, sgd ? 0 : elements / 1000) << "of " << elements << ", worst " << where;
  EXPECT_LE(worst, sgd ? 5e-6 : 2 * moved) << where;
}

void ExpectGreedy(const std::vector<int64_t>& prompt, const Generated& output,
                  const LlamaFixture& model, const TensorMap& weights, double tolerance) {
  constexpr double kTie = 1e-4;
  std::vector<int64_t> row = prompt;
  row.insert(row.end(), output.tokens.begin(), output.tokens.end());
  ASSERT_GT(output.tokens.size(), 0u);
  const at::Tensor logprobs =
      reference::LogProbs(ReferenceOf(model.shape), ToWeights(weights), row);
  for (size_t i = 0; i < output.tokens.size(); ++i) {
    const at::Tensor at_position = logprobs[static_cast<int64_t>(prompt.size() + i) - 1];
    const double chosen = at_position[output.tokens[i]].item<double>();
    EXPECT_NEAR(output.logprobs[i], chosen, tolerance) << "token " << i;
    EXPECT_LE(at_position.max().item<double>() - chosen, kTie)
        << "token " << i << " is " << output.tokens[i];
  }
  // The same from the other side: the whole continuation computed without it, up to the first near
  // tie.
  const reference::Continuation greedy =
      reference::GenerateGreedy(ReferenceOf(model.shape), ToWeights(weights), prompt,
                                static_cast<int64_t>(output.tokens.size()));
  for (size_t i = 0; i < output.tokens.size() && greedy.gaps[i] >= kTie; ++i) {
    ASSERT_EQ(output.tokens[i], greedy.tokens[i]) << "token " << i;
  }
}

}  // namespace regroup::harness
