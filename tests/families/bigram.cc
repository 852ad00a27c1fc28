#include "tests/families/bigram.h"

#include <ATen/core/Reduction.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linear.h>

#include <optional>
#include <utility>

namespace regroup {
namespace {

const ModelRegistration<Bigram> kBigram("bigram");

using Params = absl::Span<const at::Tensor>;

}  // namespace

absl::StatusOr<ModelDefinition> Bigram::Define(const ConfigFile& config, DType dtype) {
  ConfigReader reader(config);
  const int64_t vocab = reader.Integer("vocab_size", 1, 1 << 20, std::nullopt);
  const int64_t hidden = reader.Integer("hidden_size", 1, 1 << 16, std::nullopt);
  if (!reader.status().ok()) return reader.status();
  ModelDefinition definition;
  definition.model = std::make_unique<Bigram>(vocab, hidden, dtype);
  definition.initial = [](const Parameter& parameter, at::Generator generator) {
    return at::empty(parameter.shape, at::kFloat).normal_(0, 0.1, std::move(generator));
  };
  return definition;
}

Bigram::Bigram(int64_t vocab, int64_t hidden, DType dtype) : table_(dtype) {
  table_.AddUnit("embed");
  table_.AddParameter("embed.weight", {vocab, hidden});
  table_.AddUnit("head");
  table_.AddParameter("head.weight", {vocab, hidden});
  limits_.is_language_model = true;
  limits_.vocab_size = vocab;
  limits_.max_positions = 1 << 20;
}

at::Tensor Bigram::LossSum(UnitRunner& runner, const Batch& batch) const {
  at::Tensor x = runner.Run(0, batch.inputs, [](const at::Tensor& ids, Params params) {
    return at::embedding(params[0], ids);
  });
  x = runner.Run(1, x, [](const at::Tensor& h, Params params) { return at::linear(h, params[0]); });
  return at::cross_entropy_loss(x.flatten(0, 1), batch.targets.flatten(), {}, at::Reduction::Sum,
                                /*ignore_index=*/-100);
}

void Bigram::Decode(UnitRunner& runner, absl::Span<const DecodeRow> rows,
                    const LogitsSink& sink) const {
  std::vector<at::Tensor> states(rows.size());
  runner.Run(0, at::empty({0}), [&](const at::Tensor& nothing, Params params) {
    for (size_t i = 0; i < rows.size(); ++i) {
      states[i] = at::embedding(params[0], rows[i].tokens.select(1, rows[i].tokens.size(1) - 1));
    }
    return nothing;
  });
  runner.Run(1, at::empty({0}), [&](const at::Tensor& nothing, Params params) {
    for (size_t i = 0; i < rows.size(); ++i) sink(i, at::linear(states[i], params[0]));
    return nothing;
  });
  for (const DecodeRow& row : rows) row.cache->length += row.tokens.size(1);
}

int64_t Bigram::ActivationBytes(int64_t rows, int64_t seq) const {
  return SaturatedBytes(static_cast<double>(rows) * static_cast<double>(seq) * 8.0 *
                        static_cast<double>(limits_.vocab_size));
}

}  // namespace regroup
