// A ZeRO-3 training engine on one rank.
#ifndef ENGINE_TRAIN_TRAINER_H_
#define ENGINE_TRAIN_TRAINER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/data/dataset.h"
#include "engine/group/group.h"
#include "engine/infer/generation.h"
#include "engine/layout/engine_spec.h"
#include "engine/model/load.h"
#include "engine/model/model.h"
#include "engine/zero/engine_state.h"
#include "engine/zero/trace.h"

namespace regroup {

struct StepResult {
  int64_t step = 0;      // after it
  double loss = 0;       // of the global batch, before the update
  double grad_norm = 0;  // before clipping
  int64_t tokens = 0;    // counted targets of the global batch
  bool skipped = false;
  std::string reason;         // why, "" otherwise
  int64_t data_position = 0;  // after it
  int64_t weights_version = 0;
  double learning_rate = 0;
  double check_seconds = 0;  // that this rank spent in agreements, waiting for others included
};

struct MemoryUse {
  int64_t weights_bytes = 0;
  int64_t optimizer_bytes = 0;  // moments, and the master copy of bf16 weights
  int64_t buffers_bytes = 0;    // gather and gradient buffers, key-value caches
  int64_t peak_bytes = 0;       // of the three together
};

// One thread calls the collective methods; trace(), memory() and Abort may be called from any
// thread while one runs.
//
// As a Generator its ranks step together: each DecodeToken is one pass in which every unit is
// gathered once, whoever still has rows, so nobody may stop before the last row of all is finished.
// It has a trace of its own ("decode") and changes nothing that training reads. After an error of
// DecodeToken group().failure() says whether the trainer can go on.
class Trainer : public Generator {
 public:
  // Wraps `state` (this rank's, under state.layout) with hooks and buffers. Local. `model` outlives
  // the trainer; `group` is the partition group over state.layout.ranks.
  static absl::StatusOr<std::unique_ptr<Trainer>> Make(const EngineSpec& spec, const Model* model,
                                                       EngineState state,
                                                       std::unique_ptr<Group> group);
  // Collective over the layout's ranks. Draws batch number data_position of `batch` rows of `data`,
  // runs forward and backward over its `accumulate` micro-batches (1 to `batch`) one after another,
  // agrees on loss, norm, finiteness and trace, applies the update on all ranks or none. Non-finite
  // gradients or a batch without counted targets: OK with skipped. Errors: DATA_LOSS (the data file
  // of some rank), and ABORTED for ranks at another data_position or whose data count other targets
  // in the batch, leave the trainer as it was, and group() works on. After any other, ABORTED
  // (ranks disagree later), DEADLINE_EXCEEDED, UNAVAILABLE, CANCELLED, RESOURCE_EXHAUSTED,
  // group().failure() says why and the trainer can only be destroyed.
  virtual absl::StatusOr<StepResult> Step(const Dataset& data, int64_t batch,
                                          int64_t accumulate) = 0;

  // Collective over the layout's ranks: gathers unit after unit; on the lead `writer` gets every
  // parameter (nullptr elsewhere). Errors: the writer's (RESOURCE_EXHAUSTED, INTERNAL) is
  // agreed on: every member returns it, naming the lead, and the trainer goes on. After
  // DEADLINE_EXCEEDED, UNAVAILABLE, CANCELLED, or RESOURCE_EXHAUSTED (memory) on the way,
  // group().failure() says why and the trainer can only be destroyed.
  virtual absl::Status GatherTo(ExportWriter* writer) = 0;

  // Collective over the layout's ranks, between steps: they agree on `settings`, then all go on
  // with them, or none does. Errors: ABORTED (ranks disagree): nothing changed; else as of Step.
  virtual absl::Status Set(const EngineSettings& settings) = 0;

  virtual Group& group() = 0;
  virtual std::vector<TraceSnapshot> traces() const = 0;
  virtual MemoryUse memory() const = 0;
  virtual void Abort(const absl::Status& reason) = 0;
};

// Local: fills `state` with this rank's intervals of the initial weights, and of the master copy if
// it has one. `progress`, if any, is called with the bytes of weights filled so far, before the
// first parameter and after each; an error of it ends the loading and is returned.
absl::Status LoadWeights(const ParamTable& table, WeightSource& source, EngineState* state,
                         const std::function<absl::Status(int64_t)>& progress);

}  // namespace regroup

#endif  // ENGINE_TRAIN_TRAINER_H_
