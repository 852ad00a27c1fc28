// Rotary positions (arXiv:2104.09864), as transformers computes them.
#ifndef ENGINE_MODEL_ROPE_H_
#define ENGINE_MODEL_ROPE_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

namespace regroup {

// Of Llama 3.1: wavelengths above original_max_positions / low_freq_factor become `factor` times
// as long, those below original_max_positions / high_freq_factor stay, and between the two the
// frequency goes over smoothly.
struct Llama3Scaling {
  double factor = 1;
  double low_freq_factor = 1;
  double high_freq_factor = 4;  // above low_freq_factor
  int64_t original_max_positions = 0;
};

struct RopeConfig {
  double theta = 10000;
  std::optional<Llama3Scaling> llama3;
};

// fp32 [head_dim / 2]: the angle that pair i turns by from one position to the next.
// theta^(-2i / head_dim), then scaled (_compute_llama3_parameters in transformers'
// modeling_rope_utils.py), in its order of operations, so that the tables are equal to its own.
at::Tensor InverseFrequencies(const RopeConfig& rope, int64_t head_dim);

}  // namespace regroup

#endif  // ENGINE_MODEL_ROPE_H_
