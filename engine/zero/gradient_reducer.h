// Gradients of whole units, collected in flat fp32 buffers and reduce-scattered to the shards'
// owners.
#ifndef ENGINE_ZERO_GRADIENT_REDUCER_H_
#define ENGINE_ZERO_GRADIENT_REDUCER_H_

#include <ATen/core/Tensor.h>

#include <deque>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "engine/layout/param_table.h"
#include "engine/zero/buffer_pool.h"
#include "engine/zero/unit_gatherer.h"

namespace regroup {

// One thread. At most one reduction is under way while the next gradients are computed.
class GradientReducer {
 public:
  // All pointers outlive the reducer.
  GradientReducer(const ParamTable* table, const PartitionGroups& groups, BufferPool* pool);
  // Waits for what is in flight.
  ~GradientReducer();

  // Forgets the gradients of the pass before; with `accumulate` the shards of this pass are added,
  // in fp32, to those that there are.
  void BeginPass(bool accumulate);

  // Adds `gradient` (of the full shape, any floating dtype) of the unit's `position`-th parameter,
  // in fp32.
  void Add(int unit, int position, const at::Tensor& gradient);

  // Issues the reduction of what was added (zeros where nothing was). Once a pass. Collective over
  // the unit's partition group.
  absl::Status Reduce(int unit);
  bool reduced(int unit) const { return units_[unit].reduced; }

  // Blocks until all issued reductions are done.
  absl::Status Drain() { return DrainTo(0); }

  // This rank's shard of the gradient, fp32, of ShardSize elements; valid after Drain. Of all
  // passes since the last that did not accumulate.
  at::Tensor& shard(int unit) { return units_[unit].shard; }

  // Of a whole unit's gradient, padding included.
  int64_t UnitBytes(int unit) const { return units_[unit].bytes; }

  // Of all gradient shards.
  int64_t ShardBytes() const;

 private:
  struct UnitGradient {
    Group* group = nullptr;
    int64_t bytes = 0;        // of the whole buffer
    float* buffer = nullptr;  // null until the first gradient of the pass
    std::vector<bool> added;  // by position
    bool reduced = false;
    at::Tensor shard;
  };
  struct Reduction {
    int unit;
    float* buffer;
    float* part;  // this pass's shard, to be added; null = it went into the shard itself
    std::unique_ptr<Pending> pending;
  };

  float* Buffer(UnitGradient* gradient);
  absl::Status DrainTo(size_t left);

  const ParamTable* table_;
  BufferPool* pool_;
  std::vector<UnitGradient> units_;
  std::deque<Reduction> in_flight_;
  bool accumulate_ = false;
};

}  // namespace regroup

#endif  // ENGINE_ZERO_GRADIENT_REDUCER_H_
