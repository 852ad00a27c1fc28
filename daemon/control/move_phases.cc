#include "daemon/control/move_phases.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "daemon/control/validate.h"

namespace regroup {
namespace {

// Runs `command` on the members that live, whatever the operation was asked. The first error of one
// that still lives after it.
absl::Status Tell(OperationRun& run, uint64_t source, const std::vector<WorkerRef>& members,
                  const v1::Command& command) {
  std::vector<WorkerRef> living;
  for (const WorkerRef& member : members) {
    if (run.context().ranks().IsAlive(member)) living.push_back(member);
  }
  const RankCommands::Outcome outcome = run.RunPhase(
      living, source, [&command](size_t) { return command; },
      run.Options(RankCommands::OnError::kNothing), run.never());
  for (size_t i = 0; i < outcome.statuses.size(); ++i) {
    const absl::Status& status = outcome.statuses[i].status;
    // A rank that does not know of the move has nothing to do.
    if (status.ok() || absl::IsNotFound(status)) continue;
    if (run.context().ranks().IsAlive(living[i])) return status;
  }
  return absl::OkStatus();
}

absl::Status Prepare(OperationRun& run, const EngineRecord& source,
                     const std::vector<WorkerRef>& members, const v1::PrepareMove& prepare) {
  run.SetPhase("prepare");
  return run
      .RunPhase(
          members, source.uid,
          [&prepare](size_t) {
            v1::Command command;
            *command.mutable_prepare_move() = prepare;
            return command;
          },
          run.Options(RankCommands::OnError::kNothing), run.cancellation())
      .status;
}

absl::Status Agree(OperationRun& run, const EngineRecord& source,
                   const std::vector<WorkerRef>& members) {
  run.SetPhase("agree");
  int64_t attempt = 0;
  run.engines().Update(source.uid, [&](EngineRecord& engine) { attempt = ++engine.attempts; });
  const absl::StatusOr<v1::Rendezvous> rendezvous =
      run.commands().OpenRendezvous(members.front(), source.uid, attempt, TimeoutOf(source.spec));
  if (!rendezvous.ok()) return rendezvous.status();
  return run
      .RunPhase(
          members, source.uid,
          [&rendezvous](size_t) {
            v1::Command command;
            *command.mutable_agree_move()->mutable_rendezvous() = *rendezvous;
            return command;
          },
          run.Options(RankCommands::OnError::kAbortMove), run.cancellation())
      .status;
}

absl::StatusOr<MoveTotals> Move(OperationRun& run, const EngineRecord& source,
                                const std::vector<WorkerRef>& members) {
  run.SetPhase("move");
  RankCommands::Options options = run.Options(RankCommands::OnError::kAbortMove);
  options.progress = [&run](int64_t done, int64_t total) { run.SetProgress(done, total); };
  const RankCommands::Outcome moved = run.RunPhase(
      members, source.uid,
      [](size_t) {
        v1::Command command;
        command.mutable_run_move();
        return command;
      },
      options, run.cancellation());
  if (!moved.status.ok()) return moved.status;
  MoveTotals totals;
  for (const v1::CommandResult& result : moved.results) {
    totals.bytes_moved += result.run_move().bytes_received();
    totals.peak_bytes = std::max(totals.peak_bytes, result.run_move().peak_bytes());
  }
  run.SetProgress(totals.bytes_moved, totals.bytes_moved);
  run.SetPeakBytes(totals.peak_bytes);
  return totals;
}

}  // namespace

std::string BytesText(int64_t bytes) {
  if (bytes < 1000) return absl::StrCat(bytes, " B");
  if (bytes < 1000000) return absl::StrFormat("%.1f kB", bytes / 1e3);
  if (bytes < 1000000000) return absl::StrFormat("%.1f MB", bytes / 1e6);
  return absl::StrFormat("%.2f GB", bytes / 1e9);
}

std::vector<WorkerRef> UnionOfMembers(const std::vector<WorkerRef>& source,
                                      const std::vector<WorkerRef>& destination) {
  std::vector<WorkerRef> result = source;
  for (const WorkerRef& member : destination) {
    if (std::find(source.begin(), source.end(), member) == source.end()) result.push_back(member);
  }
  return result;
}

absl::StatusOr<MoveTotals> MoveUpToCommit(OperationRun& run, const EngineRecord& source,
                                          const std::vector<WorkerRef>& members,
                                          const v1::PrepareMove& prepare, absl::Status* broken) {
  absl::Status status = Prepare(run, source, members, prepare);
  if (status.ok()) status = Agree(run, source, members);
  if (status.ok()) {
    absl::StatusOr<MoveTotals> totals = Move(run, source, members);
    status = totals.status();
    if (status.ok()) status = run.cancellation().status();
    if (status.ok()) return totals;
  }
  *broken = RollBackMove(run, source.uid, members);
  return status;
}

absl::Status CommitMove(OperationRun& run, uint64_t source, const std::vector<WorkerRef>& members) {
  run.SetPhase("commit");
  v1::Command command;
  command.mutable_commit_move();
  return Tell(run, source, members, command);
}

absl::Status RollBackMove(OperationRun& run, uint64_t source,
                          const std::vector<WorkerRef>& members) {
  v1::Command command;
  command.mutable_roll_back_move();
  return Tell(run, source, members, command);
}

}  // namespace regroup
