#include "daemon/control/move_phases.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "daemon/control/node_memory.h"
#include "daemon/control/validate.h"

namespace regroup {
namespace {

// An abort of a move, in whatever phase, never ends the trainer's own groups.
RankCommands::Options MoveOptions(const OperationRun& run, RankCommands::OnError on_error) {
  RankCommands::Options options = run.Options(on_error);
  options.of_move = true;
  return options;
}

// Runs `command`, which is local, on the members that live, whatever the operation was asked. One
// that lives and refuses is in a state that nobody knows: it is killed, and what follows from that
// follows from a lost rank.
void Tell(OperationRun& run, const EngineRecord& source, const std::vector<WorkerRef>& members,
          const v1::Command& command, const std::string& what) {
  std::vector<WorkerRef> living;
  for (const WorkerRef& member : members) {
    if (run.context().ranks().IsAlive(member)) living.push_back(member);
  }
  RankCommands::Options options = MoveOptions(run, RankCommands::OnError::kNothing);
  options.timeout = run.LocalTimeout(source.spec);
  const RankCommands::Outcome outcome = run.RunPhase(
      living, source.uid, [&command](size_t) { return command; }, options, run.never());
  for (size_t i = 0; i < outcome.statuses.size(); ++i) {
    const absl::Status& status = outcome.statuses[i].status;
    // A rank that does not know of the move has nothing to do.
    if (status.ok() || absl::IsNotFound(status)) continue;
    run.commands().KillAndWait(
        living[i], absl::StrCat("could not ", what, " a move (", status.message(), ")"));
  }
}

// Ranks that do not hold the engine keep nothing of it.
void DropGuests(OperationRun& run, const EngineRecord& source,
                const std::vector<WorkerRef>& members, const std::vector<WorkerRef>& holders) {
  std::vector<WorkerRef> guests;
  for (const WorkerRef& member : members) {
    if (std::find(holders.begin(), holders.end(), member) == holders.end()) {
      guests.push_back(member);
    }
  }
  run.commands().Drop(guests, source.uid, source.spec.name());
}

absl::Status Prepare(OperationRun& run, const EngineRecord& source,
                     const std::vector<WorkerRef>& members, const v1::PrepareMove& prepare) {
  run.SetPhase("prepare");
  const RankCommands::Outcome prepared = run.RunPhase(
      members, source.uid,
      [&prepare](size_t) {
        v1::Command command;
        *command.mutable_prepare_move() = prepare;
        return command;
      },
      MoveOptions(run, RankCommands::OnError::kNothing), run.cancellation());
  if (!prepared.status.ok()) return prepared.status;
  NodeMemory memory;
  for (size_t i = 0; i < members.size(); ++i) {
    const v1::PrepareMoveResult& result = prepared.results[i].prepare_move();
    memory.Add(run.context().ranks().NodeOf(members[i].rank), result.needed_bytes(),
               result.available_bytes());
  }
  return memory.Check();
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
          MoveOptions(run, RankCommands::OnError::kAbort), run.cancellation())
      .status;
}

absl::StatusOr<MoveTotals> Move(OperationRun& run, const EngineRecord& source,
                                const std::vector<WorkerRef>& members) {
  run.SetPhase("move");
  RankCommands::Options options = MoveOptions(run, RankCommands::OnError::kAbort);
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
                                          const v1::PrepareMove& prepare) {
  absl::Status status = Prepare(run, source, members, prepare);
  if (status.ok()) status = Agree(run, source, members);
  if (status.ok()) {
    absl::StatusOr<MoveTotals> totals = Move(run, source, members);
    status = totals.status();
    if (status.ok()) status = run.cancellation().status();
    if (status.ok()) return totals;
  }
  RollBackMove(run, source, members);
  return status;
}

void CommitMove(OperationRun& run, const EngineRecord& source,
                const std::vector<WorkerRef>& members, const std::vector<WorkerRef>& holders) {
  run.SetPhase("commit");
  v1::Command command;
  command.mutable_commit_move();
  Tell(run, source, members, command, "commit");
  DropGuests(run, source, members, holders);
}

void RollBackMove(OperationRun& run, const EngineRecord& source,
                  const std::vector<WorkerRef>& members) {
  v1::Command command;
  command.mutable_roll_back_move();
  Tell(run, source, members, command, "roll back");
  DropGuests(run, source, members, source.members);
}

}  // namespace regroup
