#include "daemon/control/engine_state.h"

namespace regroup {

absl::optional<v1::EngineState> Next(v1::EngineState state, EngineEvent event) {
  const bool planned = state == v1::ENGINE_STATE_PLANNED;
  const bool forming = state == v1::ENGINE_STATE_FORMING;
  const bool ready = state == v1::ENGINE_STATE_READY;
  const bool moving = state == v1::ENGINE_STATE_MOVING;
  const bool failed = state == v1::ENGINE_STATE_FAILED;
  const bool deleting = state == v1::ENGINE_STATE_DELETING;
  const auto when = [](bool allowed, v1::EngineState next) {
    return allowed ? absl::make_optional(next) : absl::nullopt;
  };
  switch (event) {
    case EngineEvent::kForm:
      return when(planned, v1::ENGINE_STATE_FORMING);
    case EngineEvent::kFormed:
      return when(forming, v1::ENGINE_STATE_READY);
    case EngineEvent::kFormFailed:
      return when(planned || forming, v1::ENGINE_STATE_GONE);
    case EngineEvent::kMove:
      return when(ready, v1::ENGINE_STATE_MOVING);
    case EngineEvent::kMoved:
    case EngineEvent::kMoveFailed:
      return when(moving, v1::ENGINE_STATE_READY);
    case EngineEvent::kFail:
      return when(ready || moving, v1::ENGINE_STATE_FAILED);
    case EngineEvent::kLostForGood:
      return when(forming, v1::ENGINE_STATE_FAILED);
    case EngineEvent::kDelete:
      return when(planned || forming || ready || moving || failed, v1::ENGINE_STATE_DELETING);
    case EngineEvent::kDeleted:
      return when(deleting, v1::ENGINE_STATE_GONE);
  }
  return absl::nullopt;
}

const char* StateName(v1::EngineState state) {
  switch (state) {
    case v1::ENGINE_STATE_PLANNED:
      return "PLANNED";
    case v1::ENGINE_STATE_FORMING:
      return "FORMING";
    case v1::ENGINE_STATE_READY:
      return "READY";
    case v1::ENGINE_STATE_MOVING:
      return "MOVING";
    case v1::ENGINE_STATE_FAILED:
      return "FAILED";
    case v1::ENGINE_STATE_DELETING:
      return "DELETING";
    case v1::ENGINE_STATE_GONE:
      return "GONE";
    default:
      return "UNKNOWN";
  }
}

}  // namespace regroup
