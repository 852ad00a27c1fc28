#include "engine/infer/resident_runner.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/zero/dtype.h"

namespace regroup {

absl::StatusOr<ResidentRunner> ResidentRunner::Make(const ParamTable& table,
                                                    const EngineState& state) {
  if (state.units.size() != table.units().size()) {
    return absl::InvalidArgumentError(absl::StrCat("the state has ", state.units.size(),
                                                   " units, the model ", table.units().size()));
  }
  ResidentRunner runner;
  for (const Unit& unit : table.units()) {
    const at::Tensor& flat = state.units[unit.id].weights;
    if (flat.numel() != unit.numel || flat.scalar_type() != ToScalarType(table.dtype())) {
      return absl::InvalidArgumentError(
          absl::StrCat("the state holds ", flat.numel(), " elements of unit ", unit.name,
                       "; inference needs all ", unit.numel, " in ", DTypeName(table.dtype())));
    }
    std::vector<at::Tensor> views;
    for (const int id : unit.parameters) {
      const Parameter& parameter = table.parameter(id);
      views.push_back(flat.narrow(0, parameter.offset, parameter.numel).view(parameter.shape));
    }
    runner.units_.push_back(std::move(views));
  }
  return runner;
}

}  // namespace regroup
