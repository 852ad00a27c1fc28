// The families `llama`, `qwen2` and `qwen3`: a decoder with RMSNorm, rotary positions,
// grouped-query attention and SwiGLU, as transformers' LlamaForCausalLM, Qwen2ForCausalLM and
// Qwen3ForCausalLM compute it. What tells them apart stands in DecoderConfig.
#ifndef ENGINE_MODEL_DECODER_H_
#define ENGINE_MODEL_DECODER_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/model/decoder_config.h"
#include "engine/model/model.h"
#include "engine/model/registry.h"

namespace regroup {

// Units: model.embed_tokens; model.layers.{i}; last model.norm (tied: the head uses the embedding's
// unit a second time) or lm_head with the norm in it (untied).
class Decoder : public Model {
 public:
  // The families' factory.
  static absl::StatusOr<ModelDefinition> Define(const ConfigFile& config, DType dtype);

  Decoder(const DecoderConfig& config, DType dtype);

  const ParamTable& table() const override { return table_; }
  const ModelLimits& limits() const override { return limits_; }
  at::Tensor LossSum(UnitRunner& runner, const Batch& batch) const override;
  void Decode(UnitRunner& runner, absl::Span<const DecodeRow> rows,
              const LogitsSink& sink) const override;
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

  struct LayerWeights;

  void AddLayer(const std::string& name);
  LayerWeights WeightsOf(absl::Span<const at::Tensor> params) const;
  Rotary MakeRotary(int64_t first, int64_t count) const;
  int LastUnit() const { return static_cast<int>(config_.num_layers + 1); }

  // x [b, T, hidden] -> [b, T, hidden].
  at::Tensor Layer(int64_t layer, const at::Tensor& x, absl::Span<const at::Tensor> params,
                   const Rotary& rotary, const Attention& attention) const;

  // Over the last dimension.
  at::Tensor Norm(const at::Tensor& x, const at::Tensor& weight) const;

  DecoderConfig config_;
  ParamTable table_;
  ModelLimits limits_;
  at::Tensor inverse_frequencies_;  // fp32 [head_dim / 2]
};

}  // namespace regroup

#endif  // ENGINE_MODEL_DECODER_H_
