#include "absl/strings/str_cat.h"
#include "daemon/control/operations.h"
#include "spdlog/spdlog.h"

namespace regroup {

absl::Status RunDelete(OperationRun& run, uint64_t uid, const std::string& name) {
  run.SetPhase("cancel");
  const OperationTiming& timing = run.context().timing();
  if (!run.WaitForTurn(timing.delete_cancel)) {
    spdlog::info("engine {}: what runs on it is ended, it is being deleted", name);
    run.commands().AbortRunning(uid, absl::StrCat("engine ", name, " is being deleted"));
    if (!run.WaitForTurn(timing.delete_abort)) {
      run.commands().KillRunning(uid, absl::StrCat("was stuck when engine ", name, " was deleted"));
    }
  }
  const absl::StatusOr<OperationRun::Lock> lock = run.LockEngines("delete");
  if (!lock.ok()) return lock.status();
  run.SetPhase("drop");
  run.commands().Drop(run.engines().Get(uid)->members, uid, name);
  run.engines().Apply(uid, EngineEvent::kDeleted).IgnoreError();
  return absl::OkStatus();
}

}  // namespace regroup
