// Between the words of regroup.v1 and those of the engine layer.
#ifndef DAEMON_WORKER_PROTO_CONVERT_H_
#define DAEMON_WORKER_PROTO_CONVERT_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/infer/inference_engine.h"
#include "engine/layout/engine_spec.h"
#include "engine/train/trainer.h"
#include "engine/zero/trace.h"
#include "regroup/v1/control.pb.h"
#include "regroup/v1/layout.pb.h"
#include "regroup/v1/worker.pb.h"

namespace regroup {

// Errors: INVALID_ARGUMENT, UNIMPLEMENTED (of CompleteLayout).
absl::StatusOr<Layout> LayoutFromProto(const v1::Layout& proto, Placement placement);

// Errors: INVALID_ARGUMENT naming the field, the value and what is allowed; UNIMPLEMENTED for what
// is not available in this version.
absl::StatusOr<EngineSpec> SpecFromProto(const v1::EngineSpec& proto, uint64_t uid);

// Errors: as SpecFromProto.
absl::StatusOr<EngineSettings> SettingsFromProto(const v1::SetSettings& proto);

v1::DType DTypeToProto(DType dtype);
v1::FinishReason FinishToProto(Finish finish);
v1::TrainRecord RecordToProto(const StepResult& result, double seconds);

// The partition groups of an engine under its layout. Ranks of an inference engine share nothing
// out.
v1::PartitionGroup GroupToProto(const ParamTable& table, const Layout& layout);

v1::PassTrace PassToProto(const ParamTable& table, const TraceSnapshot& trace);

// The reason payload of the engine layer, or failing that the code, as regroup.v1.ErrorDetail. A
// status that has a detail keeps it; `engine_broken` is added to either. `phase` is the command.
absl::Status WithErrorDetail(const absl::Status& status, absl::string_view engine,
                             absl::string_view phase, bool engine_broken = false);

}  // namespace regroup

#endif  // DAEMON_WORKER_PROTO_CONVERT_H_
