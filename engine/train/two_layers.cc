#include "engine/train/two_layers.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/relu.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <cmath>

#include "engine/group/thread_ranks.h"
#include "gtest/gtest.h"

namespace regroup {
namespace {

at::Tensor FirstLayer(const at::Tensor& x, absl::Span<const at::Tensor> p) {
  return at::relu(at::linear(x, p[0], p[1]));
}
at::Tensor SecondLayer(const at::Tensor& x, absl::Span<const at::Tensor> p) {
  return at::linear(x, p[0], p[1]);
}

}  // namespace

at::Tensor Values(const std::vector<int64_t>& shape, double phase) {
  int64_t n = 1;
  for (const int64_t size : shape) n *= size;
  return (at::arange(n, at::kFloat) * 0.9 + phase).sin().reshape(shape);
}

at::Tensor TwoLayers::LossSum(UnitRunner& runner, const Batch& batch) const {
  const at::Tensor x = batch.inputs.to(ToScalarType(table_.dtype()));
  const at::Tensor y = runner.Run(1, runner.Run(0, x, FirstLayer), SecondLayer);
  return (y.to(at::kFloat) - batch.targets).square().sum();
}

EngineSpec Spec(OptimizerKind kind, double clip) {
  EngineSpec spec;
  spec.name = "tested";
  spec.optimizer.kind = kind;
  spec.optimizer.learning_rate = kind == OptimizerKind::kSgd ? 0.1 : 1e-3;
  spec.optimizer.weight_decay = kind == OptimizerKind::kSgd ? 0 : 0.01;
  spec.clip_norm = clip;
  return spec;
}

void RunTrainers(const std::vector<int>& ranks, EngineSpec spec, const Model& model,
                 const std::function<void(int, Trainer&)>& body) {
  spec.layout.ranks = ranks;
  ASSERT_TRUE(CompleteLayout(&spec.layout).ok());
  RunInGroup(ranks, absl::Seconds(20), [&](int rank, std::unique_ptr<Group> group) {
    EngineState state = MakeState(model.table(), spec.layout, rank, spec.optimizer.num_moments(),
                                  NeedsMaster(model.table().dtype()));
    FixedWeights weights(&model.table());
    ASSERT_TRUE(LoadWeights(model.table(), weights, &state, nullptr).ok());
    absl::StatusOr<std::unique_ptr<Trainer>> trainer =
        Trainer::Make(spec, &model, std::move(state), std::move(group));
    ASSERT_TRUE(trainer.ok()) << trainer.status();
    body(rank, **trainer);
  });
}

ReferenceStep Reference::Step(const MemoryRows& data, int64_t batch) {
  const Batch rows = data.Load(BatchRows(position_++, batch, data.rows()));
  const at::NoGradGuard outside;
  std::vector<at::Tensor> leaves;  // the rounding of the parameters
  for (const at::Tensor& p : parameters) leaves.push_back(p.to(dtype_, false, /*copy=*/true));
  for (at::Tensor& leaf : leaves) leaf.requires_grad_(true);
  at::Tensor loss;
  {
    const at::AutoGradMode grad(true);
    const at::Tensor y = SecondLayer(FirstLayer(rows.inputs.to(dtype_), {leaves[0], leaves[1]}),
                                     {leaves[2], leaves[3]});
    loss = (y.to(at::kFloat) - rows.targets).square().mean();
    torch::autograd::backward({loss}, {});
  }
  ++step_;
  double squares = 0;
  std::vector<at::Tensor> gradients;
  for (const at::Tensor& leaf : leaves) gradients.push_back(leaf.grad().to(at::kFloat));
  for (const at::Tensor& g : gradients) squares += g.square().sum().item<double>();
  const ReferenceStep result{loss.item<double>(), std::sqrt(squares)};
  const double scale =
      spec_.clip_norm > 0 ? std::min(1.0, spec_.clip_norm / (result.norm + 1e-6)) : 1;
  const OptimizerSpec& o = spec_.optimizer;
  for (size_t i = 0; i < parameters.size(); ++i) {
    const at::Tensor gradient = gradients[i] * scale;
    if (o.kind == OptimizerKind::kSgd) {
      parameters[i].sub_(gradient * o.learning_rate);
    } else {
      at::Tensor g = gradient;
      if (o.kind == OptimizerKind::kAdam) g = g + parameters[i] * o.weight_decay;
      if (o.kind == OptimizerKind::kAdamW) {
        parameters[i].mul_(1 - o.learning_rate * o.weight_decay);
      }
      m_[i] = m_[i] * o.beta1 + g * (1 - o.beta1);
      v_[i] = v_[i] * o.beta2 + g * g * (1 - o.beta2);
      const at::Tensor denominator = (v_[i] / (1 - std::pow(o.beta2, step_))).sqrt() + o.eps;
      parameters[i].sub_(m_[i] / (1 - std::pow(o.beta1, step_)) / denominator * o.learning_rate);
    }
  }
  return result;
}

}  // namespace regroup
