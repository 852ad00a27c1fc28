#include "engine/optim/optimizer.h"

#include <ATen/ops/_fused_adam.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/_fused_sgd.h>
#include <ATen/ops/scalar_tensor.h>
#include <c10/core/GradMode.h>

#include <vector>

namespace regroup {

namespace {

void Update(const OptimizerSpec& spec, int64_t step, const at::Tensor& weight, at::Tensor& gradient,
            UnitState* unit) {
  const std::vector<at::Tensor> weights{weight};
  const std::vector<at::Tensor> gradients{gradient};
  switch (spec.kind) {
    case OptimizerKind::kAdam:
      at::_fused_adam_(weights, gradients, {unit->moments[0]}, {unit->moments[1]}, {},
                       {at::scalar_tensor(static_cast<double>(step), at::kFloat)},
                       spec.learning_rate, spec.beta1, spec.beta2, spec.weight_decay, spec.eps,
                       /*amsgrad=*/false, /*maximize=*/false);
      return;
    case OptimizerKind::kAdamW:
      at::_fused_adamw_(weights, gradients, {unit->moments[0]}, {unit->moments[1]}, {},
                        {at::scalar_tensor(static_cast<double>(step), at::kFloat)},
                        spec.learning_rate, spec.beta1, spec.beta2, spec.weight_decay, spec.eps,
                        /*amsgrad=*/false, /*maximize=*/false);
      return;
    case OptimizerKind::kSgd:
      // A momentum buffer of zeros gives torch's first step too: 0 * momentum + gradient.
      at::_fused_sgd_(weights, gradients, unit->moments, spec.weight_decay, spec.momentum,
                      spec.learning_rate, /*dampening=*/0, /*nesterov=*/false, /*maximize=*/false,
                      /*is_first_step=*/false);
      return;
  }
}

}  // namespace

void ApplyUpdate(const OptimizerSpec& spec, int64_t step, at::Tensor& gradient, UnitState* unit) {
  const at::NoGradGuard no_grad;
  if (!unit->master.defined()) {
    Update(spec, step, unit->weights, gradient, unit);
    return;
  }
  Update(spec, step, unit->master, gradient, unit);
  unit->weights.copy_(unit->master);
}

double SumOfSquares(const at::Tensor& tensor) {
  const float* values = tensor.const_data_ptr<float>();
  const int64_t n = tensor.numel();
  constexpr int kLanes = 8;  // independent sums, so that the loop is not one chain of additions
  double sums[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane) {
      const double value = values[i + lane];
      sums[lane] += value * value;
    }
  }
  for (; i < n; ++i) sums[0] += static_cast<double>(values[i]) * values[i];
  double sum = 0;
  for (const double lane : sums) sum += lane;
  return sum;
}

}  // namespace regroup
