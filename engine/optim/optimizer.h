// Optimizer updates on flat fp32 shards.
#ifndef ENGINE_OPTIM_OPTIMIZER_H_
#define ENGINE_OPTIM_OPTIMIZER_H_

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "engine/layout/engine_spec.h"
#include "engine/zero/engine_state.h"

namespace regroup {

// Updates `unit`'s weights and moments in place from `gradient` (fp32, the size of the weights;
// overwritten). Where there is a master copy it is what is updated, and the weights become its
// rounding (to nearest even). `step` is the number of the update, from 1: the bias correction of
// Adam and AdamW. SGD, Adam (Kingma & Ba, arXiv:1412.6980; decay as L2 in the gradient) and AdamW
// (Loshchilov & Hutter, arXiv:1711.05101; decoupled decay) as torch.optim computes them. Padding
// stays 0. Local; throws what torch throws.
void ApplyUpdate(const OptimizerSpec& spec, int64_t step, at::Tensor& gradient, UnitState* unit);

// The sum of squares of an fp32 tensor, accumulated in double: non-finite if any element is.
double SumOfSquares(const at::Tensor& tensor);

}  // namespace regroup

#endif  // ENGINE_OPTIM_OPTIMIZER_H_
