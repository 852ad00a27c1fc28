// The operations, one function each. Every one runs on a thread of its own, blocks until it is
// over, and leaves each engine either as it was, in its new state, or FAILED with a reason.
#ifndef DAEMON_CONTROL_OPERATIONS_H_
#define DAEMON_CONTROL_OPERATIONS_H_

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "daemon/control/operation_context.h"
#include "regroup/v1/control.pb.h"

namespace regroup {

// Requests are checked and complete (validate.h). Errors name the engine and carry an ErrorDetail.

// PLANNED -> READY; after a failure the engine is gone and its ranks hold nothing.
absl::Status RunCreate(OperationRun& run, uint64_t uid);

// The engine is DELETING already and what ran on it is cancelled. Cannot fail.
absl::Status RunDelete(OperationRun& run, uint64_t uid, const std::string& name);

absl::Status RunRelayout(OperationRun& run, uint64_t uid, const v1::RelayoutEngineRequest& request);

absl::Status RunSync(OperationRun& run, uint64_t source, uint64_t destination);

absl::Status RunExport(OperationRun& run, uint64_t uid, const std::string& directory);

// What the request gives, on all ranks or none.
absl::Status RunSet(OperationRun& run, uint64_t uid, const v1::SetEngineRequest& request);

// `emit` is called once a step; false means that nobody listens any more.
absl::Status RunTrain(OperationRun& run, uint64_t uid, const v1::TrainRequest& request,
                      const std::function<bool(const v1::TrainRecord&)>& emit);

// `emit` is called with progress, and once with done.
absl::Status RunGenerate(OperationRun& run, uint64_t uid, const v1::GenerateRequest& request,
                         const std::function<bool(const v1::GenerateResponse&)>& emit);

}  // namespace regroup

#endif  // DAEMON_CONTROL_OPERATIONS_H_
