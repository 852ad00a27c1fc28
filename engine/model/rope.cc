#include "engine/model/rope.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/where.h>

#include <cmath>

namespace regroup {

at::Tensor InverseFrequencies(const RopeConfig& rope, int64_t head_dim) {
  const at::Tensor exponents =
      at::arange(0, head_dim, 2, at::kLong).to(at::kFloat) / static_cast<double>(head_dim);
  const at::Tensor plain = at::pow(rope.theta, exponents).reciprocal();
  if (!rope.llama3.has_value()) return plain;

  const Llama3Scaling& llama3 = *rope.llama3;
  const auto original = static_cast<double>(llama3.original_max_positions);
  const double longest = original / llama3.low_freq_factor;
  const double shortest = original / llama3.high_freq_factor;
  const at::Tensor wavelengths = plain.reciprocal() * (2 * M_PI);
  const at::Tensor scaled = at::where(wavelengths > longest, plain / llama3.factor, plain);
  const at::Tensor smooth = (wavelengths.reciprocal() * original - llama3.low_freq_factor) /
                            (llama3.high_freq_factor - llama3.low_freq_factor);
  const at::Tensor between = (1 - smooth) * scaled / llama3.factor + smooth * scaled;
  const at::Tensor is_between = (wavelengths >= shortest).logical_and(wavelengths <= longest);
  return at::where(is_between, between, scaled);
}

}  // namespace regroup
