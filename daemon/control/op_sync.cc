#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "daemon/control/move_phases.h"
#include "daemon/control/node_memory.h"
#include "daemon/control/operations.h"
#include "engine/layout/human_text.h"
#include "proto/rpc_status.h"

namespace regroup {
namespace {

absl::Status CheckPair(const EngineRecord& source, const EngineRecord& destination) {
  if (absl::Status status = CheckReady(source); !status.ok()) return status;
  if (absl::Status status = CheckReady(destination); !status.ok()) return status;
  if (source.fingerprint != destination.fingerprint) {
    return MakeError(
        absl::StatusCode::kFailedPrecondition,
        absl::StrCat("engines ", source.spec.name(), " and ", destination.spec.name(),
                     " hold different models (", source.spec.model(), " and ",
                     destination.spec.model(),
                     "; names, shapes and dtypes count); allowed: two engines of one model"),
        v1::ERROR_REASON_INVALID_FIELD);
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status RunSync(OperationRun& run, uint64_t source_uid, uint64_t destination_uid) {
  const absl::StatusOr<OperationRun::Lock> lock = run.LockEngines("sync");
  if (!lock.ok()) return lock.status();
  const EngineRecord source = *run.engines().Get(source_uid);
  const EngineRecord destination = *run.engines().Get(destination_uid);
  if (absl::Status status = CheckPair(source, destination); !status.ok()) {
    return EngineError(status, destination, "prepare");
  }

  v1::PrepareMove prepare;
  prepare.set_kind(v1::PrepareMove::KIND_SYNC);
  *prepare.mutable_source() = source.spec;
  *prepare.mutable_destination_layout() = destination.spec.layout();
  prepare.set_destination_uid(destination_uid);
  prepare.set_step(source.step);
  prepare.set_data_position(source.data_position);
  prepare.set_weights_version(source.weights_version);
  prepare.set_generation(destination.syncs + 1);
  prepare.set_staging_bytes(64 << 20);
  const std::vector<WorkerRef> members = UnionOfMembers(source.members, destination.members);

  const absl::StatusOr<MoveTotals> totals = MoveUpToCommit(run, source, members, prepare);
  if (!totals.ok()) {
    // A rank that could not roll back is gone by now.
    run.context().FailIfMemberLost(source_uid);
    run.context().FailIfMemberLost(destination_uid);
    return EngineError(totals.status(), destination, run.phase());
  }
  // The decision: from here on the destination has these weights, whoever dies.
  absl::Status decided = run.engines().Decide(destination_uid, [&](EngineRecord& record) {
    record.syncs = prepare.generation();
    record.step = source.step;
    record.data_position = source.data_position;
    record.weights_version = source.weights_version;
  });
  if (!decided.ok()) {
    RollBackMove(run, source, members);
    return EngineError(decided, destination, run.phase());
  }
  CommitMove(run, source, members, source.members);
  run.context().FailIfMemberLost(destination_uid);
  if (absl::Status failure = run.FailureOf(destination_uid); !failure.ok()) {
    return EngineError(failure, destination, run.phase());
  }
  run.RefreshEngine(destination_uid);
  run.SetPeakBytes(totals->peak_bytes);
  run.SetDetail(absl::StrFormat("weights version %d, %s moved", source.weights_version,
                                HumanBytes(totals->bytes_moved)));
  return absl::OkStatus();
}

}  // namespace regroup
