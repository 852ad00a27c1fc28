// How a model gets at the weights of a unit.
#ifndef ENGINE_ZERO_UNIT_RUNNER_H_
#define ENGINE_ZERO_UNIT_RUNNER_H_

#include <ATen/core/Tensor.h>

#include <functional>

#include "absl/types/span.h"

namespace regroup {

// Lends a unit's weights to a piece of a model. Two kinds: sharded (engine/zero: gathers, releases,
// hooks into autograd), and resident (engine/infer: full weights).
class UnitRunner {
 public:
  // `params` are the unit's parameters in table order, each of its full shape. They are valid only
  // inside the call (and, under autograd, inside the matching backward).
  using Body = std::function<at::Tensor(const at::Tensor& x, absl::Span<const at::Tensor> params)>;

  struct Use {
    // False for a lookup whose backward needs the gradient buffer but not the weights (embedding).
    bool backward_reads_weights = true;
    // True where keeping the graph costs little beside computing it again (the head).
    bool keep_graph = false;
  };

  virtual ~UnitRunner() = default;

  // Returns body(x, weights of `unit`). A runner may call a copy of `body` again, with equal x,
  // until the backward pass is over. A unit may be used more than once in a pass (tied weights).
  // Failures of a gather are thrown as StatusException (engine/group/comm_status.h).
  virtual at::Tensor Run(int unit, const at::Tensor& x, const Body& body, Use use) = 0;
  at::Tensor Run(int unit, const at::Tensor& x, const Body& body) {
    return Run(unit, x, body, Use{});
  }
};

}  // namespace regroup

#endif  // ENGINE_ZERO_UNIT_RUNNER_H_
