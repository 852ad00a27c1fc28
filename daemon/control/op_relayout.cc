#include <string>
#include <utility>
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

absl::Status CheckMovable(const EngineRecord& engine, const v1::RelayoutEngineRequest& request) {
  if (absl::Status status = CheckReady(engine); !status.ok()) return status;
  if (request.expected_generation() != 0 && request.expected_generation() != engine.generation) {
    return MakeError(
        absl::StatusCode::kAborted,
        absl::StrCat("--if-generation=", request.expected_generation(), " is stale: engine ",
                     engine.spec.name(), " is at generation ", engine.generation),
        v1::ERROR_REASON_STALE);
  }
  return absl::OkStatus();
}

// The processes of the new layout: those that hold the engine now, and others once they are ready.
absl::StatusOr<std::vector<WorkerRef>> FindMembers(OperationRun& run, const EngineRecord& engine,
                                                   const v1::Layout& layout) {
  const std::vector<int> ranks(layout.ranks().begin(), layout.ranks().end());
  return run.context().ranks().AwaitReady(ranks, absl::Now() + run.context().timing().ready_wait,
                                          [&run] { return run.cancellation().status(); });
}

}  // namespace

absl::Status RunRelayout(OperationRun& run, uint64_t uid,
                         const v1::RelayoutEngineRequest& request) {
  const absl::StatusOr<OperationRun::Lock> lock = run.LockEngines("relayout");
  if (!lock.ok()) return lock.status();
  const EngineRecord engine = *run.engines().Get(uid);
  if (absl::Status status = CheckMovable(engine, request); !status.ok()) {
    return EngineError(status, engine, "prepare");
  }
  const absl::StatusOr<std::vector<WorkerRef>> destination =
      FindMembers(run, engine, request.layout());
  if (!destination.ok()) return EngineError(destination.status(), engine, "prepare");
  if (absl::Status status = run.engines().Apply(uid, EngineEvent::kMove); !status.ok()) {
    return EngineError(status, engine, "prepare");
  }

  v1::PrepareMove prepare;
  prepare.set_kind(v1::PrepareMove::KIND_RELAYOUT);
  *prepare.mutable_source() = engine.spec;
  *prepare.mutable_destination_layout() = request.layout();
  prepare.set_step(engine.step);
  prepare.set_data_position(engine.data_position);
  prepare.set_weights_version(engine.weights_version);
  prepare.set_generation(engine.generation + 1);
  prepare.set_staging_bytes(request.staging_bytes());
  const std::vector<WorkerRef> members = UnionOfMembers(engine.members, *destination);

  const absl::StatusOr<MoveTotals> totals = MoveUpToCommit(run, engine, members, prepare);
  absl::Status status = totals.status();
  if (status.ok()) {
    // The decision: from here on the new layout is the engine's, whoever dies.
    status = run.engines().Apply(uid, EngineEvent::kMoved, [&](EngineRecord& record) {
      *record.spec.mutable_layout() = request.layout();
      record.members = *destination;
      ++record.generation;
    });
    if (!status.ok()) RollBackMove(run, engine, members);  // it failed, or is being deleted
  }
  if (!status.ok()) {
    run.engines().Apply(uid, EngineEvent::kMoveFailed).IgnoreError();
    run.context().FailIfMemberLost(uid);
    return EngineError(status, engine, run.phase());
  }
  CommitMove(run, engine, members, *destination);
  run.RefreshEngine(uid);
  run.SetPeakBytes(totals->peak_bytes);
  run.SetDetail(absl::StrFormat("%d -> %d ranks, %s moved", engine.members.size(),
                                destination->size(), HumanBytes(totals->bytes_moved)));
  run.context().FailIfMemberLost(uid);
  return EngineError(run.FailureOf(uid), engine, run.phase());
}

}  // namespace regroup
