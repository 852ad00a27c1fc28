#include <ATen/TensorOperators.h>
#include <ATen/ops/sqrt.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/variable.h>

#include <cmath>

#include "tests/reference/reference.h"

namespace regroup::reference {

Trainer::Trainer(const Weights& weights, const TrainOptions& options) : options_(options) {
  for (const auto& [name, weight] : weights) {
    weights_[name] = weight.detach().clone();
  }
}

Step Trainer::TrainStep(const LossFunction& loss_function) {
  Weights leaves;
  for (const auto& [name, weight] : weights_) {
    leaves[name] = weight.detach()
                       .to(options_.bf16 ? at::kBFloat16 : at::kFloat, false, /*copy=*/true)
                       .requires_grad_();
  }
  const at::Tensor loss = loss_function(leaves);
  loss.backward();
  const c10::NoGradGuard no_grad;
  double squares = 0;
  Weights gradients;
  for (const auto& [name, leaf] : leaves) {
    gradients[name] = leaf.grad().to(at::kFloat);
    squares += gradients[name].to(at::kDouble).pow(2).sum().item<double>();
  }
  Step step;
  step.loss = loss.item<double>();
  step.grad_norm = std::sqrt(squares);
  double scale = 1;
  if (options_.clip_norm > 0) scale = std::min(1.0, options_.clip_norm / (step.grad_norm + 1e-6));
  ++step_;
  for (auto& [name, weight] : weights_) {
    Update(weight, gradients[name] * scale, name);
  }
  return step;
}

void Trainer::Update(at::Tensor weight, at::Tensor gradient, const std::string& name) {
  const double rate = options_.learning_rate;
  if (options_.optimizer != Optimizer::kAdamW && options_.weight_decay != 0) {
    gradient = gradient + weight * options_.weight_decay;
  }
  if (options_.optimizer == Optimizer::kSgd) {
    if (options_.momentum != 0) {
      const auto [buffer, is_new] = first_.try_emplace(name, gradient);
      if (!is_new) buffer->second = buffer->second * options_.momentum + gradient;
      gradient = buffer->second;
    }
    weight.sub_(gradient * rate);
    return;
  }
  if (options_.optimizer == Optimizer::kAdamW) weight.mul_(1 - rate * options_.weight_decay);
  at::Tensor& mean = first_.try_emplace(name, at::zeros_like(gradient)).first->second;
  at::Tensor& square = second_.try_emplace(name, at::zeros_like(gradient)).first->second;
  mean = mean + (gradient - mean) * (1 - options_.beta1);
  square = square * options_.beta2 + gradient * gradient * (1 - options_.beta2);
  const double mean_correction = 1 - std::pow(options_.beta1, static_cast<double>(step_));
  const double square_correction = 1 - std::pow(options_.beta2, static_cast<double>(step_));
  const at::Tensor denominator = square.sqrt() / std::sqrt(square_correction) + options_.eps;
  weight.sub_(mean / denominator * (rate / mean_correction));
}

std::vector<int64_t> BatchRows(int64_t position, int64_t batch, int64_t rows) {
  std::vector<int64_t> result;
  for (int64_t i = 0; i < batch; ++i) result.push_back((position * batch + i) % rows);
  return result;
}

TokenBatch CutTokens(const std::vector<int64_t>& tokens, int64_t seq,
                     const std::vector<int64_t>& rows) {
  std::vector<int64_t> inputs;
  std::vector<int64_t> targets;
  for (const int64_t row : rows) {
    for (int64_t i = row * seq; i < (row + 1) * seq; ++i) {
      inputs.push_back(tokens.at(i));
      targets.push_back(tokens.at(i + 1));
    }
  }
  const auto count = static_cast<int64_t>(rows.size());
  return {at::tensor(inputs).view({count, seq}), at::tensor(targets).view({count, seq})};
}

}  // namespace regroup::reference
