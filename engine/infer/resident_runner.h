// Lends the full weights that an inference engine holds.
#ifndef ENGINE_INFER_RESIDENT_RUNNER_H_
#define ENGINE_INFER_RESIDENT_RUNNER_H_

#include <ATen/core/Tensor.h>

#include <vector>

#include "absl/status/statusor.h"
#include "engine/model/model.h"
#include "engine/zero/engine_state.h"

namespace regroup {

// Parameters are views into the units' flat buffers, made once; they share storage with the state.
class ResidentRunner : public UnitRunner {
 public:
  // Errors: INVALID_ARGUMENT if `state` does not hold the whole of each unit of `table` in its
  // dtype.
  static absl::StatusOr<ResidentRunner> Make(const ParamTable& table, const EngineState& state);

  at::Tensor Run(int unit, const at::Tensor& x, const Body& body, Use use) override {
    return body(x, units_[unit]);
  }

 private:
  std::vector<std::vector<at::Tensor>> units_;
};

}  // namespace regroup

#endif  // ENGINE_INFER_RESIDENT_RUNNER_H_
