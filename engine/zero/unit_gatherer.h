// Full weights of units on demand: gathered into reused buffers, given back after use.
#ifndef ENGINE_ZERO_UNIT_GATHERER_H_
#define ENGINE_ZERO_UNIT_GATHERER_H_

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "engine/group/group.h"
#include "engine/layout/param_table.h"
#include "engine/zero/buffer_pool.h"
#include "engine/zero/engine_state.h"

namespace regroup {

// The partition groups of an engine, by name. Not owned.
using PartitionGroups = std::map<std::string, Group*>;

// [Note: unit storage] Each unit has one Storage whose memory is swapped in when the unit is
// gathered and out when it is released. The parameters are tensors over that storage that live as
// long as the engine; autograd gets leaves over the same storage, with version counters of their
// own, and notices no swap.
//
// One thread.
class UnitGatherer {
 public:
  // All pointers outlive the gatherer.
  UnitGatherer(const ParamTable* table, const EngineState* state, PartitionGroups groups,
               BufferPool* pool);
  // Waits for what is in flight.
  ~UnitGatherer();

  // The unit's parameters, of their full shapes; their memory is there between Acquire and Release
  // only.
  absl::Span<const at::Tensor> parameters(int unit) const { return units_[unit].parameters; }
  bool resident(int unit) const { return units_[unit].buffer != nullptr; }
  Group& group(int unit) const { return *units_[unit].group; }

  // Issues the gather of `unit` unless it is resident or under way; true if it did. Collective over
  // the unit's partition group.
  bool Start(int unit);

  // Start, then blocks until the weights are there.
  absl::Status Acquire(int unit);

  // Gives the buffer back. A unit that is not resident is left alone.
  void Release(int unit);

  // Bytes of a whole unit, padding included.
  int64_t UnitBytes(int unit) const { return units_[unit].bytes; }

 private:
  struct UnitMemory {
    Group* group = nullptr;
    int64_t bytes = 0;
    c10::Storage storage;
    std::vector<at::Tensor> parameters;
    void* buffer = nullptr;            // null = released
    std::unique_ptr<Pending> pending;  // the gather into `buffer`, while it is under way
  };

  const ParamTable* table_;
  const EngineState* state_;
  BufferPool* pool_;
  std::vector<UnitMemory> units_;
};

}  // namespace regroup

#endif  // ENGINE_ZERO_UNIT_GATHERER_H_
