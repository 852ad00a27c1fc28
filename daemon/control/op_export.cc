#include <string>

#include "absl/strings/str_format.h"
#include "daemon/control/node_memory.h"
#include "daemon/control/operations.h"
#include "engine/layout/human_text.h"

namespace regroup {
namespace {

// The lead alone opens the folder: where it cannot, nobody else must be waiting for it.
absl::Status CheckFolder(OperationRun& run, const EngineRecord& engine,
                         const std::string& directory) {
  run.SetPhase("prepare");
  return run
      .RunPhase(
          {engine.members.front()}, engine.uid,
          [&directory](size_t) {
            v1::Command command;
            command.mutable_check_export()->set_directory(directory);
            return command;
          },
          run.Options(RankCommands::OnError::kNothing), run.cancellation())
      .status;
}

}  // namespace

absl::Status RunExport(OperationRun& run, uint64_t uid, const std::string& directory) {
  const absl::StatusOr<OperationRun::Lock> lock = run.LockEngines("export");
  if (!lock.ok()) return lock.status();
  const EngineRecord engine = *run.engines().Get(uid);
  if (absl::Status status = CheckReady(engine); !status.ok()) return status;
  if (absl::Status status = CheckFolder(run, engine, directory); !status.ok()) {
    return EngineError(status, engine, run.phase());
  }
  run.SetPhase("write");
  // A file that cannot be written is agreed on and leaves the engine as it was.
  RankCommands::Options options = run.Options(RankCommands::OnError::kAbortIfBroken);
  options.progress = [&run](int64_t done, int64_t total) { run.SetProgress(done, total); };
  const RankCommands::Outcome outcome = run.RunPhase(
      engine.members, uid,
      [&directory](size_t i) {
        v1::Command command;
        v1::ExportEngine& request = *command.mutable_export_engine();
        if (i == 0) request.set_directory(directory);  // the lead, which alone opens it
        return command;
      },
      options, run.cancellation());
  if (outcome.engine_broken) run.context().FailEngine(uid, outcome.status);
  if (!outcome.status.ok()) return EngineError(outcome.status, engine, run.phase());
  const int64_t bytes = outcome.results.front().export_engine().bytes();
  run.SetProgress(bytes, bytes);
  run.SetDetail(absl::StrFormat("%s written to %s", HumanBytes(bytes), directory));
  run.RefreshEngine(uid);
  return absl::OkStatus();
}

}  // namespace regroup
