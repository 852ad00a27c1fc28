// The `llama` family: decoder with RMSNorm, rotary positions, grouped-query attention and SwiGLU,
// as transformers' LlamaForCausalLM computes it.
#ifndef ENGINE_MODEL_LLAMA_H_
#define ENGINE_MODEL_LLAMA_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "engine/model/hf_config.h"
#include "engine/model/model.h"
#include "engine/model/registry.h"

namespace regroup {

// Units: model.embed_tokens; model.layers.{i}; last model.norm (tied: the head uses the embedding's
// unit a second time) or lm_head with the norm in it (untied).
class Llama : public Model {
 public:
  Llama(const LlamaConfig& config, DType dtype);

  const ParamTable& table() const override { return table_; }
  const ModelLimits& limits() const override { return limits_; }
  at::Tensor LossSum(UnitRunner& runner, const Batch& batch) const override;
  at::Tensor NextLogits(UnitRunner& runner, const at::Tensor& tokens,
                        KvCache* cache) const override;
  KvCache MakeCache(int64_t capacity) const override;
  int64_t CacheBytes(int64_t capacity) const override;
  int64_t ActivationBytes(int64_t rows, int64_t seq) const override;
  int64_t RecomputedActivationBytes(int64_t rows, int64_t seq) const override;
  std::string Signature() const override;

 private:
  int64_t PassBytes(int64_t rows, int64_t seq, double vectors) const;

  // Cosines and sines [T, head_dim] of consecutive positions.
  struct Rotary {
    at::Tensor cos;
    at::Tensor sin;
  };
  // (layer, q [b, heads, T, head_dim], k and v [b, kv_heads, T, head_dim]) -> [b, heads, T,
  // head_dim].
  using Attention = std::function<at::Tensor(int64_t layer, const at::Tensor& q,
                                             const at::Tensor& k, const at::Tensor& v)>;

  Rotary MakeRotary(int64_t first, int64_t count) const;

  // Embedding and layers: tokens [b, T] -> [b, T, hidden].
  at::Tensor Hidden(UnitRunner& runner, const at::Tensor& tokens, const Rotary& rotary,
                    const Attention& attention) const;
  at::Tensor Layer(int64_t layer, const at::Tensor& x, absl::Span<const at::Tensor> params,
                   const Rotary& rotary, const Attention& attention) const;

  // Final norm and head: [..., hidden] -> [..., vocab].
  at::Tensor Logits(UnitRunner& runner, const at::Tensor& x) const;

  at::Tensor Norm(const at::Tensor& x, const at::Tensor& weight) const;

  LlamaConfig config_;
  ParamTable table_;
  ModelLimits limits_;
  at::Tensor inverse_frequencies_;  // fp32 [head_dim / 2]
};

// The family's factory.
absl::StatusOr<ModelDefinition> DefineLlama(const ConfigFile& config, DType dtype);

}  // namespace regroup

#endif  // ENGINE_MODEL_LLAMA_H_
