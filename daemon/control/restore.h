// What becomes of an engine of an earlier start of the primary: decided from what its ranks hold.
#ifndef DAEMON_CONTROL_RESTORE_H_
#define DAEMON_CONTROL_RESTORE_H_

#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "daemon/control/engine_registry.h"
#include "regroup/v1/worker.pb.h"

namespace regroup {

// What is known of one member of a restored engine.
struct MemberReport {
  enum class Known {
    kNothing,  // its node has not joined again, or the process did not answer
    kGone,     // another process serves the rank: the member ended
    kHolds,    // it answered: `held` is what it holds of the engine
  };
  WorkerRef member;
  std::string node;
  Known known = Known::kNothing;
  v1::HeldEngine held;        // uid 0: nothing
  bool sync_pending = false;  // a sync into the engine is neither committed nor rolled back there
};

struct RestoreDecision {
  enum class Step {
    kWait,       // for what `status` says
    kReady,      // it goes on, with the first member's step
    kFail,       // it is lost, for the reason `status`
    kJoinStep,   // `members` were not told of the step that the others are in: tell them
    kAbortMove,  // a move that was not decided runs: end it on `members`
    kCommit,     // the move that is pending on `members` was decided: commit it
    kRollBack,   // it was not
  };
  Step step = Step::kWait;
  absl::Status status;
  std::vector<size_t> members;  // indices of those to command
};

// Pure. `decided(move)`: whether a sync that is pending on a member was decided before the restart.
// A step that was under way when the primary died ends on all members before the engine is READY;
// one that reached only some of them is joined by the others, so that it is applied by all.
RestoreDecision DecideRestore(const EngineRecord& engine, absl::Span<const MemberReport> members,
                              absl::FunctionRef<bool(const v1::PendingMove&)> decided);

}  // namespace regroup

#endif  // DAEMON_CONTROL_RESTORE_H_
