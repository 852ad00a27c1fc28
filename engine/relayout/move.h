// Moves the state of an engine between two layouts, over a group of its own, on one rank.
#ifndef ENGINE_RELAYOUT_MOVE_H_
#define ENGINE_RELAYOUT_MOVE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/group/group.h"
#include "engine/layout/plan.h"
#include "engine/zero/engine_state.h"

namespace regroup {

struct MoveOptions {
  Layout source;
  Layout destination;
  // Moved beside the weights: the optimizer's moments and the fp32 master copy where there is one
  // (relayout); neither (sync).
  int num_moments = 0;
  bool has_master = false;
  int64_t staging_bytes = 64 << 20;  // bound of the bytes in flight per rank
  // Ranks of one host read what they need from each other's memory where the system lets them;
  // otherwise all data goes through the group. The same on every member.
  bool reads_memory = true;
  int64_t step = 0;  // of the source; ranks outside it learn them here
  int64_t data_position = 0;
  int64_t weights_version = 0;
};

struct MoveResult {
  int64_t bytes_sent = 0;
  int64_t bytes_received = 0;
  int64_t bytes_kept = 0;
};

// prepare (the constructor: allocates the destination intervals) -> Agree -> Run -> TakeState;
// destroying it before TakeState is the roll-back. The source state is only read.
class Move {
 public:
  // Local. `source` is this rank's state, nullptr if it is not in options.source; it outlives the
  // move. Errors: INVALID_ARGUMENT, RESOURCE_EXHAUSTED.
  static absl::StatusOr<std::unique_ptr<Move>> Prepare(const ParamTable& table,
                                                       const MoveOptions& options, int rank,
                                                       const EngineState* source);
  virtual ~Move() = default;

  // Collective over `group`, which spans the union of source and destination ranks: agrees on
  // table, plan digest, step, data position, weights version and the loss scale of fp16 trainers,
  // which ranks outside the source learn here, and finds out who can read whose memory. The move
  // keeps the group.
  virtual absl::Status Agree(std::unique_ptr<Group> group) = 0;

  // Collective over the group: issues the planned copies within the staging bound, compares an XXH3
  // digest of each copy. `progress` gets the bytes received or placed so far and the total. Errors:
  // DATA_LOSS naming unit and ranks, DEADLINE_EXCEEDED, UNAVAILABLE, CANCELLED.
  virtual absl::StatusOr<MoveResult> Run(const std::function<void(int64_t, int64_t)>& progress) = 0;

  // The new state, complete; nullopt on a rank outside the destination. Once, after Run succeeded.
  virtual std::optional<EngineState> TakeState() = 0;

  // Any thread.
  virtual void Abort(const absl::Status& reason) = 0;
};

}  // namespace regroup

#endif  // ENGINE_RELAYOUT_MOVE_H_
