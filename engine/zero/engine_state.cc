#include "engine/zero/engine_state.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/core/ScalarType.h>

#include <utility>

#include "engine/zero/dtype.h"

namespace regroup {

namespace {

// Of `size` elements, those from `filled` on zero; the others too, or as they come.
at::Tensor MakeTensor(int64_t size, c10::ScalarType dtype, int64_t filled, bool zeroed) {
  if (zeroed) return at::zeros({size}, dtype);
  at::Tensor tensor = at::empty({size}, dtype);
  tensor.narrow(0, filled, size - filled).zero_();
  return tensor;
}

EngineState MakeStateOf(const ParamTable& table, const Layout& layout, int rank, int num_moments,
                        bool has_master, bool zeroed) {
  EngineState state;
  state.layout = layout;
  if (has_master && table.dtype() == DType::kFp16) state.loss_scale = LossScale();
  state.units.reserve(table.units().size());
  for (const Unit& unit : table.units()) {
    UnitState held;
    held.interval = HeldInterval(layout, unit.numel, rank);
    const int64_t size =
        layout.placement == Placement::kShard ? ShardSize(unit.numel, layout.size()) : unit.numel;
    const auto make = [&](c10::ScalarType dtype) {
      return MakeTensor(size, dtype, held.interval.size(), zeroed);
    };
    held.weights = make(ToScalarType(table.dtype()));
    if (has_master) held.master = make(at::kFloat);
    for (int i = 0; i < num_moments; ++i) held.moments.push_back(make(at::kFloat));
    state.units.push_back(std::move(held));
  }
  return state;
}

}  // namespace

EngineState MakeState(const ParamTable& table, const Layout& layout, int rank, int num_moments,
                      bool has_master) {
  return MakeStateOf(table, layout, rank, num_moments, has_master, /*zeroed=*/true);
}

EngineState MakeUnfilledState(const ParamTable& table, const Layout& layout, int rank,
                              int num_moments, bool has_master) {
  return MakeStateOf(table, layout, rank, num_moments, has_master, /*zeroed=*/false);
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
