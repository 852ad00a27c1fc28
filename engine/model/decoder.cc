#include "engine/model/decoder.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Reduction.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/outer.h>
#include <ATen/ops/rms_norm.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/zeros.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "engine/zero/dtype.h"

namespace regroup {
namespace {

constexpr char kEmbedding[] = "model.embed_tokens.weight";
constexpr char kHead[] = "lm_head.weight";
constexpr int64_t kIgnored = -100;  // a target that is not counted

// Rotates pairs (i, i + head_dim / 2) of the last dimension.
at::Tensor Rotate(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin) {
  const int64_t half = x.size(-1) / 2;
  const at::Tensor swapped = at::cat({x.narrow(-1, half, half).neg(), x.narrow(-1, 0, half)}, -1);
  return x * cos + swapped * sin;
}

// Each key-value head for its group of query heads: [b, kv, T, d] -> [b, kv * times, T, d].
at::Tensor RepeatHeads(const at::Tensor& x, int64_t times) {
  if (times == 1) return x;
  const int64_t b = x.size(0), kv = x.size(1), t = x.size(2), d = x.size(3);
  return x.unsqueeze(2).expand({b, kv, times, t, d}).reshape({b, kv * times, t, d});
}

// Tokens attend to themselves and those before them in the same call.
at::Tensor CausalAttention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
  const int64_t times = q.size(1) / k.size(1);
  return at::scaled_dot_product_attention(q, RepeatHeads(k, times), RepeatHeads(v, times), {}, 0.0,
                                          /*is_causal=*/true);
}

// n tokens at positions `past` ... attend to what k and v [1, kv, past + n, d] hold up to them. The
// query heads of a group stand side by side as rows, so that keys and values are not copied.
at::Tensor CachedAttention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                           int64_t past) {
  const int64_t heads = q.size(1), n = q.size(2), d = q.size(3), kv = k.size(1);
  const int64_t times = heads / kv;
  const at::Tensor rows = q.reshape({1, kv, times * n, d});
  std::optional<at::Tensor> mask;
  if (n > 1) {
    const at::Tensor positions = at::arange(past, past + n, at::kLong).unsqueeze(1);
    const at::Tensor seen = at::arange(past + n, at::kLong).unsqueeze(0) <= positions;
    mask = seen.repeat({times, 1});
  }
  return at::scaled_dot_product_attention(rows, k, v, mask).reshape({1, heads, n, d});
}

}  // namespace

struct Decoder::LayerWeights {
  at::Tensor input_norm;
  at::Tensor query, query_bias;  // a bias that the family has not is undefined
  at::Tensor key, key_bias;
  at::Tensor value, value_bias;
  at::Tensor query_norm, key_norm;  // undefined without qk_norm
  at::Tensor output, output_bias;
  at::Tensor post_attention_norm;
  at::Tensor gate, up, down;
};

Decoder::Decoder(const DecoderConfig& config, DType dtype) : config_(config), table_(dtype) {
  table_.AddUnit("model.embed_tokens");
  table_.AddParameter(kEmbedding, {config.vocab_size, config.hidden_size});
  for (int64_t i = 0; i < config.num_layers; ++i) AddLayer(absl::StrCat("model.layers.", i));
  table_.AddUnit(config.tie_word_embeddings ? "model.norm" : "lm_head");
  table_.AddParameter("model.norm.weight", {config.hidden_size});
  if (!config.tie_word_embeddings) {
    table_.AddParameter(kHead, {config.vocab_size, config.hidden_size});
  }

  limits_.is_language_model = true;
  limits_.vocab_size = config.vocab_size;
  limits_.max_positions = config.max_positions;
  limits_.stop_tokens = config.eos_tokens;
  inverse_frequencies_ = InverseFrequencies(config.rope, config.head_dim);
}

// The parameters' order is that of WeightsOf.
void Decoder::AddLayer(const std::string& name) {
  const int64_t hidden = config_.hidden_size;
  const int64_t inner = config_.intermediate_size;
  const auto add = [&](const char* part, std::vector<int64_t> shape) {
    table_.AddParameter(absl::StrCat(name, ".", part), std::move(shape));
  };
  const auto add_linear = [&](const char* part, int64_t out, int64_t in, bool bias) {
    add(absl::StrCat(part, ".weight").c_str(), {out, in});
    if (bias) add(absl::StrCat(part, ".bias").c_str(), {out});
  };
  const int64_t queries = config_.num_heads * config_.head_dim;
  const int64_t keys = config_.num_kv_heads * config_.head_dim;
  table_.AddUnit(name);
  add("input_layernorm.weight", {hidden});
  add_linear("self_attn.q_proj", queries, hidden, config_.qkv_bias);
  add_linear("self_attn.k_proj", keys, hidden, config_.qkv_bias);
  add_linear("self_attn.v_proj", keys, hidden, config_.qkv_bias);
  if (config_.qk_norm) {
    add("self_attn.q_norm.weight", {config_.head_dim});
    add("self_attn.k_norm.weight", {config_.head_dim});
  }
  add_linear("self_attn.o_proj", hidden, queries, config_.output_bias);
  add("post_attention_layernorm.weight", {hidden});
  add_linear("mlp.gate_proj", inner, hidden, false);
  add_linear("mlp.up_proj", inner, hidden, false);
  add_linear("mlp.down_proj", hidden, inner, false);
}

Decoder::LayerWeights Decoder::WeightsOf(absl::Span<const at::Tensor> params) const {
  size_t next = 0;
  const auto take = [&](bool there = true) { return there ? params[next++] : at::Tensor(); };
  LayerWeights weights;
  weights.input_norm = take();
  weights.query = take();
  weights.query_bias = take(config_.qkv_bias);
  weights.key = take();
  weights.key_bias = take(config_.qkv_bias);
  weights.value = take();
  weights.value_bias = take(config_.qkv_bias);
  weights.query_norm = take(config_.qk_norm);
  weights.key_norm = take(config_.qk_norm);
  weights.output = take();
  weights.output_bias = take(config_.output_bias);
  weights.post_attention_norm = take();
  weights.gate = take();
  weights.up = take();
  weights.down = take();
  return weights;
}

Decoder::Rotary Decoder::MakeRotary(int64_t first, int64_t count) const {
  const at::Tensor positions = at::arange(first, first + count, at::kLong).to(at::kFloat);
  const at::Tensor angles = at::outer(positions, inverse_frequencies_);
  const at::Tensor both = at::cat({angles, angles}, -1);
  const at::ScalarType dtype = ToScalarType(table_.dtype());
  return {both.cos().to(dtype), both.sin().to(dtype)};
}

at::Tensor Decoder::Norm(const at::Tensor& x, const at::Tensor& weight) const {
  return at::rms_norm(x, {x.size(-1)}, weight, config_.rms_norm_eps);
}

at::Tensor Decoder::Layer(int64_t layer, const at::Tensor& x, absl::Span<const at::Tensor> params,
                          const Rotary& rotary, const Attention& attention) const {
  const LayerWeights weights = WeightsOf(params);
  const int64_t b = x.size(0), t = x.size(1), d = config_.head_dim;
  const auto heads = [b, t, d](const at::Tensor& y, int64_t count) {
    return y.reshape({b, t, count, d});
  };
  at::Tensor h = Norm(x, weights.input_norm);
  at::Tensor q = heads(at::linear(h, weights.query, weights.query_bias), config_.num_heads);
  at::Tensor k = heads(at::linear(h, weights.key, weights.key_bias), config_.num_kv_heads);
  at::Tensor v = heads(at::linear(h, weights.value, weights.value_bias), config_.num_kv_heads);
  if (config_.qk_norm) {
    q = Norm(q, weights.query_norm);
    k = Norm(k, weights.key_norm);
  }
  q = Rotate(q.transpose(1, 2), rotary.cos, rotary.sin);
  k = Rotate(k.transpose(1, 2), rotary.cos, rotary.sin);
  const at::Tensor attended = attention(layer, q, k, v.transpose(1, 2));
  h = attended.transpose(1, 2).reshape({b, t, config_.num_heads * d});
  const at::Tensor middle = x + at::linear(h, weights.output, weights.output_bias);
  h = Norm(middle, weights.post_attention_norm);
  h = at::silu(at::linear(h, weights.gate)) * at::linear(h, weights.up);
  return middle + at::linear(h, weights.down);
}

at::Tensor Decoder::LossSum(UnitRunner& runner, const Batch& batch) const {
  using Params = absl::Span<const at::Tensor>;
  const int64_t b = batch.inputs.size(0), t = batch.inputs.size(1);
  UnitRunner::Use lookup;
  lookup.backward_reads_weights = false;
  at::Tensor x = runner.Run(
      0, batch.inputs,
      [](const at::Tensor& ids, Params params) { return at::embedding(params[0], ids); }, lookup);
  const Rotary rotary = MakeRotary(0, t);
  const Attention attention = [](int64_t, const at::Tensor& q, const at::Tensor& k,
                                 const at::Tensor& v) { return CausalAttention(q, k, v); };
  for (int64_t i = 0; i < config_.num_layers; ++i) {
    // By value: a runner may call the body again after this call.
    x = runner.Run(static_cast<int>(i + 1), x,
                   [this, i, rotary, attention](const at::Tensor& h, Params params) {
                     return Layer(i, h, params, rotary, attention);
                   });
  }
  const bool tied = config_.tie_word_embeddings;
  UnitRunner::Use head;
  head.keep_graph = true;
  x = runner.Run(
      LastUnit(), x,
      [this, tied](const at::Tensor& h, Params params) {
        const at::Tensor normed = Norm(h, params[0]);
        return tied ? normed : at::linear(normed, params[1]);
      },
      tied ? UnitRunner::Use{} : head);
  if (tied) {
    x = runner.Run(
        0, x, [](const at::Tensor& h, Params params) { return at::linear(h, params[0]); }, head);
  }
  // Nothing here holds the logits on: the loss keeps what its backward needs. It is fp32 whatever
  // the weights are, as transformers computes it.
  return at::cross_entropy_loss(
      std::exchange(x, {}).view({b * t, config_.vocab_size}).to(at::kFloat),
      batch.targets.reshape({b * t}), {}, at::Reduction::Sum, kIgnored);
}

void Decoder::Decode(UnitRunner& runner, absl::Span<const DecodeRow> rows,
                     const LogitsSink& sink) const {
  struct Row {
    at::Tensor x;
    Rotary rotary;
    Attention attention;
  };
  std::vector<Row> states(rows.size());
  for (size_t i = 0; i < rows.size(); ++i) {
    KvCache* cache = rows[i].cache;
    const int64_t past = cache->length, n = rows[i].tokens.size(1);
    TORCH_CHECK(n > 0 && past + n <= cache->keys[0].size(2), "the key-value cache holds ",
                cache->keys[0].size(2), " tokens; ", past + n, " are needed");
    states[i].rotary = MakeRotary(past, n);
    states[i].attention = [cache, past, n](int64_t layer, const at::Tensor& q, const at::Tensor& k,
                                           const at::Tensor& v) {
      cache->keys[layer].narrow(2, past, n).copy_(k);
      cache->values[layer].narrow(2, past, n).copy_(v);
      if (past == 0) return CausalAttention(q, k, v);
      return CachedAttention(q, cache->keys[layer].narrow(2, 0, past + n),
                             cache->values[layer].narrow(2, 0, past + n), past);
    };
  }
  // A unit is lent once for all rows; what goes from unit to unit stands in `states`.
  const at::Tensor nothing = at::empty({0});
  using Params = absl::Span<const at::Tensor>;
  const auto run = [&](int unit, const std::function<void(size_t row, Params params)>& body) {
    runner.Run(unit, nothing, [&](const at::Tensor& x, Params params) {
      for (size_t i = 0; i < rows.size(); ++i) body(i, params);
      return x;
    });
  };
  run(0, [&](size_t i, Params params) { states[i].x = at::embedding(params[0], rows[i].tokens); });
  for (int64_t layer = 0; layer < config_.num_layers; ++layer) {
    run(static_cast<int>(layer + 1), [&](size_t i, Params params) {
      Row& row = states[i];
      row.x = Layer(layer, row.x, params, row.rotary, row.attention);
    });
  }
  const bool tied = config_.tie_word_embeddings;
  run(LastUnit(), [&](size_t i, Params params) {
    at::Tensor& x = states[i].x;
    x = Norm(x.select(1, x.size(1) - 1), params[0]);
    if (!tied) sink(i, at::linear(x, params[1]));
  });
  if (tied) {
    run(0, [&](size_t i, Params params) { sink(i, at::linear(states[i].x, params[0])); });
  }
  for (const DecodeRow& row : rows) row.cache->length += row.tokens.size(1);
}

KvCache Decoder::MakeCache(int64_t capacity) const {
  KvCache cache;
  const std::vector<int64_t> shape = {1, config_.num_kv_heads, capacity, config_.head_dim};
  for (int64_t i = 0; i < config_.num_layers; ++i) {
    cache.keys.push_back(at::empty(shape, ToScalarType(table_.dtype())));
    cache.values.push_back(at::empty(shape, ToScalarType(table_.dtype())));
  }
  return cache;
}

int64_t Decoder::CacheBytes(int64_t capacity) const {
  return SaturatedBytes(2.0 * static_cast<double>(config_.num_layers) *
                        static_cast<double>(config_.num_kv_heads * config_.head_dim) *
                        static_cast<double>(capacity) *
                        static_cast<double>(DTypeBytes(table_.dtype())));
}

// Of each token: its logits with their gradients in fp32, and vectors of the hidden size that the
// backward pass reads: some 16 in each layer, or each layer's input and the 16 of one layer.
int64_t Decoder::PassBytes(int64_t rows, int64_t seq, double vectors) const {
  const double of_token =
      8.0 * static_cast<double>(config_.vocab_size) +
      vectors * static_cast<double>(config_.hidden_size * DTypeBytes(table_.dtype()));
  return SaturatedBytes(static_cast<double>(rows) * static_cast<double>(seq) * of_token);
}

int64_t Decoder::ActivationBytes(int64_t rows, int64_t seq) const {
  return PassBytes(rows, seq, 16.0 * static_cast<double>(config_.num_layers));
}

int64_t Decoder::RecomputedActivationBytes(int64_t rows, int64_t seq) const {
  return PassBytes(rows, seq, 16.0 + static_cast<double>(config_.num_layers));
}

std::string Decoder::Signature() const {
  std::string scaling = "default";
  if (const auto& llama3 = config_.rope.llama3; llama3.has_value()) {
    scaling = absl::StrFormat("llama3 (factor %.17g, frequency factors %.17g and %.17g, of %d)",
                              llama3->factor, llama3->low_freq_factor, llama3->high_freq_factor,
                              llama3->original_max_positions);
  }
  return absl::StrFormat(
      "decoder silu rope %s theta %.17g, rms_norm_eps %.17g, heads %d of %d, kv heads %d, tied %d",
      scaling, config_.rope.theta, config_.rms_norm_eps, config_.num_heads, config_.head_dim,
      config_.num_kv_heads, static_cast<int>(config_.tie_word_embeddings));
}

absl::StatusOr<ModelDefinition> Decoder::Define(const ConfigFile& config, DType dtype) {
  absl::StatusOr<DecoderConfig> decoder = ParseDecoderConfig(config);
  if (!decoder.ok()) return decoder.status();
  ModelDefinition definition;
  definition.model = std::make_unique<Decoder>(*decoder, dtype);
  definition.initial = [range = decoder->initializer_range](const Parameter& parameter,
                                                            at::Generator generator) {
    if (absl::EndsWith(parameter.name, ".bias")) return at::zeros(parameter.shape, at::kFloat);
    if (parameter.shape.size() == 1) return at::ones(parameter.shape, at::kFloat);
    return at::empty(parameter.shape, at::kFloat).normal_(0, range, std::move(generator));
  };
  if (decoder->tie_word_embeddings) definition.copies[kHead] = kEmbedding;
  definition.ignored_endings = {".rotary_emb.inv_freq"};
  return definition;
}

}  // namespace regroup
