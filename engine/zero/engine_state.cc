#include "engine/zero/engine_state.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/core/ScalarType.h>

#include <utility>

#include "engine/zero/dtype.h"

namespace regroup {

namespace {

// make(size, dtype, filled): a tensor of `size` elements, of which the first `filled` are the
// interval's.
using MakeTensor = at::Tensor (*)(int64_t size, c10::ScalarType dtype, int64_t filled);

EngineState MakeStateOf(const ParamTable& table, const Layout& layout, int rank, int num_moments,
                        bool has_master, MakeTensor make) {
  EngineState state;
  state.layout = layout;
  if (has_master && table.dtype() == DType::kFp16) state.loss_scale = LossScale();
  state.units.reserve(table.units().size());
  for (const Unit& unit : table.units()) {
    UnitState held;
    held.interval = HeldInterval(layout, unit.numel, rank);
    const int64_t size =
        layout.placement == Placement::kShard ? ShardSize(unit.numel, layout.size()) : unit.numel;
    const int64_t filled = held.interval.size();
    held.weights = make(size, ToScalarType(table.dtype()), filled);
    if (has_master) held.master = make(size, at::kFloat, filled);
    for (int i = 0; i < num_moments; ++i) held.moments.push_back(make(size, at::kFloat, filled));
    state.units.push_back(std::move(held));
  }
  return state;
}

at::Tensor Zeros(int64_t size, c10::ScalarType dtype, int64_t) { return at::zeros({size}, dtype); }

at::Tensor ZeroPadded(int64_t size, c10::ScalarType dtype, int64_t filled) {
  at::Tensor tensor = at::empty({size}, dtype);
  tensor.narrow(0, filled, size - filled).zero_();
  return tensor;
}

}  // namespace

EngineState MakeState(const ParamTable& table, const Layout& layout, int rank, int num_moments,
                      bool has_master) {
  return MakeStateOf(table, layout, rank, num_moments, has_master, Zeros);
}

EngineState MakeUnfilledState(const ParamTable& table, const Layout& layout, int rank,
                              int num_moments, bool has_master) {
  return MakeStateOf(table, layout, rank, num_moments, has_master, ZeroPadded);
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
