#include "engine/zero/engine_state.h"

#include <ATen/ops/zeros.h>

#include "engine/zero/dtype.h"

namespace regroup {

EngineState MakeState(const ParamTable& table, const Layout& layout, int rank, int num_moments,
                      bool has_master) {
  EngineState state;
  state.layout = layout;
  if (has_master && table.dtype() == DType::kFp16) state.loss_scale = LossScale();
  state.units.reserve(table.units().size());
  for (const Unit& unit : table.units()) {
    UnitState held;
    held.interval = HeldInterval(layout, unit.numel, rank);
    const int64_t size =
        layout.placement == Placement::kShard ? ShardSize(unit.numel, layout.size()) : unit.numel;
    held.weights = at::zeros({size}, ToScalarType(table.dtype()));
    if (has_master) held.master = at::zeros({size}, at::kFloat);
    for (int i = 0; i < num_moments; ++i) held.moments.push_back(at::zeros({size}, at::kFloat));
    state.units.push_back(std::move(held));
  }
  return state;
}

int64_t WeightsBytes(const EngineState& state) {
  int64_t bytes = 0;
  for (const UnitState& unit : state.units) bytes += static_cast<int64_t>(unit.weights.nbytes());
  return bytes;
}

int64_t OptimizerBytes(const EngineState& state) {
  int64_t bytes = 0;
  for (const UnitState& unit : state.units) {
    if (unit.master.defined()) bytes += static_cast<int64_t>(unit.master.nbytes());
    for (const at::Tensor& moment : unit.moments) bytes += static_cast<int64_t>(moment.nbytes());
  }
  return bytes;
}

}  // namespace regroup
