// Activation checkpointing (arXiv:1604.06174): the inside of a computation is built again when its
// gradient comes, instead of being kept from the forward pass.
#ifndef ENGINE_ZERO_RECOMPUTE_H_
#define ENGINE_ZERO_RECOMPUTE_H_

#include <ATen/core/Tensor.h>

#include <functional>

namespace regroup {

// Returns `output`, which was computed from `input` without a graph, as the result of a graph node
// that keeps only `input`. When the gradient of the output is there, once, in the backward pass,
// `again(x, gradient)` is called in grad mode with a leaf x equal to `input`, which requires grad
// as that does; it computes the output from x again and runs backward from it. Then x.grad() is the
// gradient of `input`. What `again` throws ends the backward pass. Call with grad mode on.
using Again = std::function<void(const at::Tensor& x, const at::Tensor& gradient)>;
at::Tensor WithRecompute(const at::Tensor& input, const at::Tensor& output, Again again);

}  // namespace regroup

#endif  // ENGINE_ZERO_RECOMPUTE_H_
