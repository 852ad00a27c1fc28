#include "engine/zero/recompute.h"

#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/variable.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace regroup {
namespace {

using torch::autograd::variable_list;

class RecomputeNode : public torch::autograd::Node {
 public:
  RecomputeNode(const at::Tensor& input, const at::Tensor& output, Again again)
      : Node(torch::autograd::collect_next_edges(input)),
        input_(input.variable_data()),
        output_(output.options()),
        shape_(output.sizes().vec()),
        needs_gradient_(input.requires_grad()),
        again_(std::move(again)) {}

  std::string name() const override { return "Recompute"; }
  void release_variables() override { input_.reset(); }

 private:
  variable_list apply(variable_list&& gradients) override {
    TORCH_CHECK(input_.defined(), "a recomputed graph runs backward once");
    at::Tensor gradient = std::move(gradients[0]);
    if (!gradient.defined()) gradient = at::zeros(shape_, output_);
    // It may be freed as soon as the computation itself holds what it needs of it.
    at::Tensor x = std::exchange(input_, at::Tensor());
    x.requires_grad_(needs_gradient_);
    const at::AutoGradMode grad(true);
    again_(x, gradient);
    return {needs_gradient_ ? std::move(x.mutable_grad()) : at::Tensor()};
  }

  at::Tensor input_;
  const at::TensorOptions output_;
  const std::vector<int64_t> shape_;
  const bool needs_gradient_;
  const Again again_;
};

}  // namespace

at::Tensor WithRecompute(const at::Tensor& input, const at::Tensor& output, Again again) {
  const auto node = std::shared_ptr<RecomputeNode>(
      new RecomputeNode(input, output, std::move(again)), torch::autograd::deleteNode);
  at::Tensor result = output.variable_data();
  torch::autograd::set_history(result, node);
  return result;
}

}  // namespace regroup
