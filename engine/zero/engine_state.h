// The live state of an engine on one rank: what a relayout moves and a checkpoint saves.
#ifndef ENGINE_ZERO_ENGINE_STATE_H_
#define ENGINE_ZERO_ENGINE_STATE_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "engine/layout/layout.h"
#include "engine/layout/param_table.h"
#include "engine/layout/shard.h"
#include "engine/zero/loss_scale.h"

namespace regroup {

// One rank's part of one unit. Every tensor is 1-D and contiguous: ShardSize(unit, group) elements
// when sharded (those beyond interval.size() are padding, always 0), the unit's numel when
// replicated. Element i of a tensor is element interval.begin + i of the unit's flat buffer.
struct UnitState {
  Interval interval;
  at::Tensor weights;  // of the table's dtype
  // fp32; the weights are its rounding. Undefined for fp32 weights and for inference.
  at::Tensor master;
  std::vector<at::Tensor>
      moments;  // fp32: exp_avg, exp_avg_sq (adam, adamw); momentum (sgd); none (inference)
};

struct EngineState {
  Layout layout;
  std::vector<UnitState> units;         // by engine-local unit id
  int64_t step = 0;                     // applied updates
  int64_t data_position = 0;            // batches drawn
  int64_t weights_version = 1;          // +1 per applied step or load
  std::optional<LossScale> loss_scale;  // of fp16 trainers
};

// Zeroed state of `rank` (a member of layout.ranks) with `num_moments` moments a unit and, if asked
// for, a master copy (and, of fp16 weights, the loss scale to start with).
EngineState MakeState(const ParamTable& table, const Layout& layout, int rank, int num_moments,
                      bool has_master = false);

// As MakeState for a caller that writes all intervals: only the padding is zeroed, the rest of the
// memory is left as it came, so that no page is touched twice.
EngineState MakeUnfilledState(const ParamTable& table, const Layout& layout, int rank,
                              int num_moments, bool has_master = false);

int64_t WeightsBytes(const EngineState& state);
int64_t OptimizerBytes(const EngineState& state);  // moments and master copy

}  // namespace regroup

#endif  // ENGINE_ZERO_ENGINE_STATE_H_
