// The config.json of a decoder: llama, qwen2 or qwen3.
#ifndef ENGINE_MODEL_DECODER_CONFIG_H_
#define ENGINE_MODEL_DECODER_CONFIG_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/model/hf_config.h"
#include "engine/model/rope.h"

namespace regroup {

struct DecoderConfig {
  int64_t vocab_size = 0;
  int64_t hidden_size = 0;
  int64_t intermediate_size = 0;
  int64_t num_layers = 0;
  int64_t num_heads = 0;
  int64_t num_kv_heads = 0;  // divides num_heads
  int64_t head_dim = 0;      // even
  int64_t max_positions = 0;
  double rms_norm_eps = 1e-6;
  RopeConfig rope;
  double initializer_range = 0.02;
  bool tie_word_embeddings = false;
  bool qkv_bias = false;     // of q_proj, k_proj and v_proj
  bool output_bias = false;  // of o_proj
  bool qk_norm = false;      // an RMSNorm of each query and key head, before the rotation
  std::vector<int64_t> eos_tokens;
};

// By config.model_type: llama, qwen2 (qkv_bias) or qwen3 (qk_norm). Every size is bounded, so that
// nothing computed from them overflows. Defaults are transformers' of the family. Errors:
// INVALID_ARGUMENT, UNIMPLEMENTED (sliding windows, activation, rope type, mlp_bias, dropout,
// quantization).
absl::StatusOr<DecoderConfig> ParseDecoderConfig(const ConfigFile& config);

}  // namespace regroup

#endif  // ENGINE_MODEL_DECODER_CONFIG_H_
