// An engine's record as a row of the state store, and back.
#ifndef DAEMON_CONTROL_STORED_ENGINE_H_
#define DAEMON_CONTROL_STORED_ENGINE_H_

#include "daemon/control/engine_registry.h"
#include "regroup/v1/store.pb.h"

namespace regroup {

// Without groups and activity, which are of the moment.
v1::StoredEngine ToStored(const EngineRecord& record);
EngineRecord FromStored(const v1::StoredEngine& row);

}  // namespace regroup

#endif  // DAEMON_CONTROL_STORED_ENGINE_H_
