#include "engine/model/llama.h"

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
#include <ATen/ops/pow.h>
#include <ATen/ops/rms_norm.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/silu.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "engine/zero/dtype.h"

namespace regroup {
namespace {

constexpr char kEmbedding[] = "model.embed_tokens.weight";
constexpr char kHead[] = "lm_head.weight";
constexpr int64_t kIgnored = -100;  // a target that is not counted

// A layer's parameters, in the order of its unit.
enum LayerParameter {
  kInputNorm,
  kQuery,
  kKey,
  kValue,
  kOutput,
  kPostAttentionNorm,
  kGate,
  kUp,
  kDown,
};

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

Llama::Llama(const LlamaConfig& config, DType dtype) : config_(config), table_(dtype) {
  const int64_t hidden = config.hidden_size;
  const int64_t queries = config.num_heads * config.head_dim;
  const int64_t keys = config.num_kv_heads * config.head_dim;
  const int64_t inner = config.intermediate_size;
  table_.AddUnit("model.embed_tokens");
  table_.AddParameter(kEmbedding, {config.vocab_size, hidden});
  for (int64_t i = 0; i < config.num_layers; ++i) {
    const std::string name = absl::StrCat("model.layers.", i);
    table_.AddUnit(name);
    table_.AddParameter(absl::StrCat(name, ".input_layernorm.weight"), {hidden});
    table_.AddParameter(absl::StrCat(name, ".self_attn.q_proj.weight"), {queries, hidden});
    table_.AddParameter(absl::StrCat(name, ".self_attn.k_proj.weight"), {keys, hidden});
    table_.AddParameter(absl::StrCat(name, ".self_attn.v_proj.weight"), {keys, hidden});
    table_.AddParameter(absl::StrCat(name, ".self_attn.o_proj.weight"), {hidden, queries});
    table_.AddParameter(absl::StrCat(name, ".post_attention_layernorm.weight"), {hidden});
    table_.AddParameter(absl::StrCat(name, ".mlp.gate_proj.weight"), {inner, hidden});
    table_.AddParameter(absl::StrCat(name, ".mlp.up_proj.weight"), {inner, hidden});
    table_.AddParameter(absl::StrCat(name, ".mlp.down_proj.weight"), {hidden, inner});
  }
  table_.AddUnit(config.tie_word_embeddings ? "model.norm" : "lm_head");
  table_.AddParameter("model.norm.weight", {hidden});
  if (!config.tie_word_embeddings) table_.AddParameter(kHead, {config.vocab_size, hidden});

  limits_.is_language_model = true;
  limits_.vocab_size = config.vocab_size;
  limits_.max_positions = config.max_positions;
  limits_.stop_tokens = config.eos_tokens;

  // In transformers' order of operations, so that the tables are equal to its own.
  const at::Tensor exponents = at::arange(0, config.head_dim, 2, at::kLong).to(at::kFloat) /
                               static_cast<double>(config.head_dim);
  inverse_frequencies_ = at::pow(config.rope_theta, exponents).reciprocal();
}

Llama::Rotary Llama::MakeRotary(int64_t first, int64_t count) const {
  const at::Tensor positions = at::arange(first, first + count, at::kLong).to(at::kFloat);
  const at::Tensor angles = at::outer(positions, inverse_frequencies_);
  const at::Tensor both = at::cat({angles, angles}, -1);
  const at::ScalarType dtype = ToScalarType(table_.dtype());
  return {both.cos().to(dtype), both.sin().to(dtype)};
}

at::Tensor Llama::Norm(const at::Tensor& x, const at::Tensor& weight) const {
  return at::rms_norm(x, {config_.hidden_size}, weight, config_.rms_norm_eps);
}

at::Tensor Llama::Layer(int64_t layer, const at::Tensor& x, absl::Span<const at::Tensor> params,
                        const Rotary& rotary, const Attention& attention) const {
  const int64_t b = x.size(0), t = x.size(1), d = config_.head_dim;
  const auto heads = [b, t, d](const at::Tensor& y, int64_t count) {
    return y.reshape({b, t, count, d}).transpose(1, 2);
  };
  at::Tensor h = Norm(x, params[kInputNorm]);
  const at::Tensor q = heads(at::linear(h, params[kQuery]), config_.num_heads);
  const at::Tensor k = heads(at::linear(h, params[kKey]), config_.num_kv_heads);
  const at::Tensor v = heads(at::linear(h, params[kValue]), config_.num_kv_heads);
  const at::Tensor attended =
      attention(layer, Rotate(q, rotary.cos, rotary.sin), Rotate(k, rotary.cos, rotary.sin), v);
  h = attended.transpose(1, 2).reshape({b, t, config_.num_heads * d});
  const at::Tensor middle = x + at::linear(h, params[kOutput]);
  h = Norm(middle, params[kPostAttentionNorm]);
  h = at::silu(at::linear(h, params[kGate])) * at::linear(h, params[kUp]);
  return middle + at::linear(h, params[kDown]);
}

at::Tensor Llama::Hidden(UnitRunner& runner, const at::Tensor& tokens, const Rotary& rotary,
                         const Attention& attention) const {
  UnitRunner::Use lookup;
  lookup.backward_reads_weights = false;
  at::Tensor x = runner.Run(
      0, tokens,
      [](const at::Tensor& ids, absl::Span<const at::Tensor> params) {
        return at::embedding(params[0], ids);
      },
      lookup);
  for (int64_t i = 0; i < config_.num_layers; ++i) {
    // By value: a runner may call the body again after this call.
    x = runner.Run(
        static_cast<int>(i + 1), x,
        [this, i, rotary, attention](const at::Tensor& h, absl::Span<const at::Tensor> params) {
          return Layer(i, h, params, rotary, attention);
        });
  }
  return x;
}

at::Tensor Llama::Logits(UnitRunner& runner, const at::Tensor& x) const {
  const int last = static_cast<int>(config_.num_layers + 1);
  UnitRunner::Use head;
  head.keep_graph = true;
  if (!config_.tie_word_embeddings) {
    return runner.Run(
        last, x,
        [this](const at::Tensor& h, absl::Span<const at::Tensor> params) {
          return at::linear(Norm(h, params[0]), params[1]);
        },
        head);
  }
  const at::Tensor normed =
      runner.Run(last, x, [this](const at::Tensor& h, absl::Span<const at::Tensor> params) {
        return Norm(h, params[0]);
      });
  return runner.Run(
      0, normed,
      [](const at::Tensor& h, absl::Span<const at::Tensor> params) {
        return at::linear(h, params[0]);
      },
      head);
}

at::Tensor Llama::LossSum(UnitRunner& runner, const Batch& batch) const {
  const int64_t b = batch.inputs.size(0), t = batch.inputs.size(1);
  const Rotary rotary = MakeRotary(0, t);
  const Attention attention = [](int64_t, const at::Tensor& q, const at::Tensor& k,
                                 const at::Tensor& v) { return CausalAttention(q, k, v); };
  // Nothing here holds the logits on: the loss keeps what its backward needs. It is fp32 whatever
  // the weights are, as transformers computes it.
  return at::cross_entropy_loss(Logits(runner, Hidden(runner, batch.inputs, rotary, attention))
                                    .view({b * t, config_.vocab_size})
                                    .to(at::kFloat),
                                batch.targets.reshape({b * t}), {}, at::Reduction::Sum, kIgnored);
}

at::Tensor Llama::NextLogits(UnitRunner& runner, const at::Tensor& tokens, KvCache* cache) const {
  const int64_t past = cache->length, n = tokens.size(1);
  TORCH_CHECK(n > 0 && past + n <= cache->keys[0].size(2), "the key-value cache holds ",
              cache->keys[0].size(2), " tokens; ", past + n, " are needed");
  const Attention attention = [cache, past, n](int64_t layer, const at::Tensor& q,
                                               const at::Tensor& k, const at::Tensor& v) {
    cache->keys[layer].narrow(2, past, n).copy_(k);
    cache->values[layer].narrow(2, past, n).copy_(v);
    if (past == 0) return CausalAttention(q, k, v);
    return CachedAttention(q, cache->keys[layer].narrow(2, 0, past + n),
                           cache->values[layer].narrow(2, 0, past + n), past);
  };
  const at::Tensor x = Hidden(runner, tokens, MakeRotary(past, n), attention);
  cache->length = past + n;
  return Logits(runner, x.select(1, n - 1));
}

KvCache Llama::MakeCache(int64_t capacity) const {
  KvCache cache;
  const std::vector<int64_t> shape = {1, config_.num_kv_heads, capacity, config_.head_dim};
  for (int64_t i = 0; i < config_.num_layers; ++i) {
    cache.keys.push_back(at::empty(shape, ToScalarType(table_.dtype())));
    cache.values.push_back(at::empty(shape, ToScalarType(table_.dtype())));
  }
  return cache;
}

int64_t Llama::CacheBytes(int64_t capacity) const {
  return SaturatedBytes(2.0 * static_cast<double>(config_.num_layers) *
                        static_cast<double>(config_.num_kv_heads * config_.head_dim) *
                        static_cast<double>(capacity) *
                        static_cast<double>(DTypeBytes(table_.dtype())));
}

// Of each token: its logits with their gradients in fp32, and vectors of the hidden size that the
// backward pass reads: some 16 in each layer, or each layer's input and the 16 of one layer.
int64_t Llama::PassBytes(int64_t rows, int64_t seq, double vectors) const {
  const double of_token =
      8.0 * static_cast<double>(config_.vocab_size) +
      vectors * static_cast<double>(config_.hidden_size * DTypeBytes(table_.dtype()));
  return SaturatedBytes(static_cast<double>(rows) * static_cast<double>(seq) * of_token);
}

int64_t Llama::ActivationBytes(int64_t rows, int64_t seq) const {
  return PassBytes(rows, seq, 16.0 * static_cast<double>(config_.num_layers));
}

int64_t Llama::RecomputedActivationBytes(int64_t rows, int64_t seq) const {
  return PassBytes(rows, seq, 16.0 + static_cast<double>(config_.num_layers));
}

std::string Llama::Signature() const {
  return absl::StrFormat(
      "llama silu rope default theta %.17g, rms_norm_eps %.17g, heads %d of %d, kv heads %d, tied "
      "%d",
      config_.rope_theta, config_.rms_norm_eps, config_.num_heads, config_.head_dim,
      config_.num_kv_heads, static_cast<int>(config_.tie_word_embeddings));
}

absl::StatusOr<ModelDefinition> DefineLlama(const ConfigFile& config, DType dtype) {
  absl::StatusOr<LlamaConfig> llama = ParseLlamaConfig(config);
  if (!llama.ok()) return llama.status();
  ModelDefinition definition;
  definition.model = std::make_unique<Llama>(*llama, dtype);
  definition.initial = [range = llama->initializer_range](const Parameter& parameter,
                                                          at::Generator generator) {
    if (parameter.shape.size() == 1) return at::ones(parameter.shape, at::kFloat);
    return at::empty(parameter.shape, at::kFloat).normal_(0, range, std::move(generator));
  };
  if (llama->tie_word_embeddings) definition.copies[kHead] = kEmbedding;
  definition.ignored_endings = {".rotary_emb.inv_freq"};
  return definition;
}

}  // namespace regroup
