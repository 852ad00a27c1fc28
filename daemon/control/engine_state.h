// The life of an engine, as a pure function.
#ifndef DAEMON_CONTROL_ENGINE_STATE_H_
#define DAEMON_CONTROL_ENGINE_STATE_H_

#include "absl/types/optional.h"
#include "regroup/v1/status.pb.h"

namespace regroup {

enum class EngineEvent {
  kForm,         // its ranks are ready and prepared: groups are about to form
  kFormed,       // every rank holds its part
  kFormFailed,   // it never came to be; its name is free again
  kMove,         // a relayout begins
  kMoved,        // the new layout is decided: generation + 1
  kMoveFailed,   // rolled back: the old layout stands
  kFail,         // a rank that holds state is lost, or its group broke in a step
  kLostForGood,  // taken over from an earlier start of the primary, it turned out not to be whole
  kDelete,
  kDeleted,  // no rank holds anything of it
};

//            kForm            kFormed          kMove
//   PLANNED ───────► FORMING ─────────► READY ───────► MOVING
//      │                │               │   ▲ kMoved,    │ │
//      │ kFormFailed    │ kFormFailed   │   │ kMoveFailed│ │
//      ▼                ▼               │   └────────────┘ │
//     GONE             GONE             │ kFail            │ kFail
//                                       ▼                  │
//                                     FAILED ◄─────────────┘
//
// An engine of an earlier start of the primary is FORMING, until all of its ranks are found again:
// kFormed; or are known not to hold it any more: kLostForGood, FORMING -> FAILED.
//
//   PLANNED, FORMING, READY, MOVING, FAILED ──kDelete──► DELETING ──kDeleted──► GONE
//
// The state that follows, or nullopt if `event` means nothing in `state`.
absl::optional<v1::EngineState> Next(v1::EngineState state, EngineEvent event);

// "READY".
const char* StateName(v1::EngineState state);

}  // namespace regroup

#endif  // DAEMON_CONTROL_ENGINE_STATE_H_
