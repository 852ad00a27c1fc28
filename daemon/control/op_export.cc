#include <string>

#include "absl/strings/str_format.h"
#include "daemon/control/move_phases.h"
#include "daemon/control/operations.h"

namespace regroup {
namespace {

// A file that cannot be written is agreed on and leaves the engine as it was; a broken group does
// not.
bool BreaksGroup(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status) ||
         absl::IsCancelled(status) || absl::IsAborted(status);
}

}  // namespace

absl::Status RunExport(OperationRun& run, uint64_t uid, const std::string& directory) {
  const absl::StatusOr<OperationRun::Lock> lock = run.LockEngines("export");
  if (!lock.ok()) return lock.status();
  const EngineRecord engine = *run.engines().Get(uid);
  if (absl::Status status = CheckReady(engine); !status.ok()) return status;
  run.SetPhase("write");
  RankCommands::Options options = run.Options(RankCommands::OnError::kAbortEngine);
  options.progress = [&run](int64_t done, int64_t total) { run.SetProgress(done, total); };
  const absl::StatusOr<TicketQueue::Ticket> ticket =
      run.commands().TakeTicket(engine.members, run.cancellation());
  if (!ticket.ok()) return EngineError(ticket.status(), engine, run.phase());
  const RankCommands::Outcome outcome = run.commands().Run(
      *ticket, engine.members, uid,
      [&directory](size_t) {
        v1::Command command;
        command.mutable_export_engine()->set_directory(directory);
        return command;
      },
      options, run.cancellation());
  if (!outcome.status.ok()) {
    if (outcome.aborted || BreaksGroup(outcome.status)) {
      run.context().FailEngine(uid, outcome.status);
    }
    return EngineError(outcome.status, engine, run.phase());
  }
  const int64_t bytes = outcome.results.front().export_engine().bytes();
  run.SetProgress(bytes, bytes);
  run.SetDetail(absl::StrFormat("%s written to %s", BytesText(bytes), directory));
  run.RefreshEngine(uid);
  return absl::OkStatus();
}

}  // namespace regroup
