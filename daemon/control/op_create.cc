#include <string>
#include <utility>
#include <vector>

#include "daemon/control/node_memory.h"
#include "daemon/control/operations.h"
#include "daemon/control/validate.h"

namespace regroup {
namespace {

// Local work first: whatever is wrong with the model or the memory shows before anybody waits for
// anybody.
absl::Status Prepare(OperationRun& run, EngineRecord& engine) {
  run.SetPhase("prepare");
  const auto& layout = engine.spec.layout();
  const std::vector<int> ranks(layout.ranks().begin(), layout.ranks().end());
  absl::StatusOr<std::vector<WorkerRef>> members =
      run.context().ranks().AwaitReady(ranks, absl::Now() + run.context().timing().ready_wait,
                                       [&run] { return run.cancellation().status(); });
  if (!members.ok()) return members.status();
  engine.members = *std::move(members);

  RankCommands::Outcome prepared = run.RunPhase(
      engine.members, engine.uid,
      [&engine](size_t) {
        v1::Command command;
        *command.mutable_prepare_engine()->mutable_spec() = engine.spec;
        return command;
      },
      run.Options(RankCommands::OnError::kNothing), run.cancellation());
  if (!prepared.status.ok()) return prepared.status;
  NodeMemory memory;
  for (size_t i = 0; i < engine.members.size(); ++i) {
    const v1::PrepareEngineResult& each = prepared.results[i].prepare_engine();
    memory.Add(run.context().ranks().NodeOf(engine.members[i].rank), each.needed_bytes(),
               each.available_bytes());
  }
  if (absl::Status status = memory.Check(); !status.ok()) return status;
  const v1::PrepareEngineResult& result = prepared.results.front().prepare_engine();
  if (engine.spec.dtype() == v1::DTYPE_UNSPECIFIED) engine.spec.set_dtype(result.dtype());
  return run.engines().Apply(engine.uid, EngineEvent::kForm, [&](EngineRecord& record) {
    record.members = engine.members;
    record.spec.set_dtype(engine.spec.dtype());
    record.parameters = result.parameters();
    record.units = result.units();
    record.fingerprint = result.fingerprint();
    record.attempts = 1;
  });
}

absl::Status Form(OperationRun& run, const EngineRecord& engine) {
  run.SetPhase("form");
  const absl::StatusOr<v1::Rendezvous> rendezvous = run.commands().OpenRendezvous(
      engine.members.front(), engine.uid, /*attempt=*/1, TimeoutOf(engine.spec));
  if (!rendezvous.ok()) return rendezvous.status();
  RankCommands::Options options = run.Options(RankCommands::OnError::kAbort);
  options.abort_when_cancelled = true;
  options.progress = [&run](int64_t done, int64_t total) {
    run.SetPhase("load");
    run.SetProgress(done, total);
  };
  RankCommands::Outcome formed = run.RunPhase(
      engine.members, engine.uid,
      [&rendezvous](size_t) {
        v1::Command command;
        *command.mutable_form_engine()->mutable_rendezvous() = *rendezvous;
        return command;
      },
      options, run.cancellation());
  if (!formed.status.ok()) return formed.status;
  if (run.cancellation().cancelled()) return run.cancellation().status();
  const auto& groups = formed.results.front().form_engine().groups();
  return run.engines().Apply(engine.uid, EngineEvent::kFormed, [&](EngineRecord& record) {
    record.groups.assign(groups.begin(), groups.end());
    record.generation = 1;
    record.weights_version = 1;
  });
}

}  // namespace

absl::Status RunCreate(OperationRun& run, uint64_t uid) {
  const absl::StatusOr<OperationRun::Lock> lock = run.LockEngines("create");
  if (!lock.ok()) {
    // Nobody has been asked for anything. A delete that took over removes the name itself.
    run.engines().Apply(uid, EngineEvent::kFormFailed).IgnoreError();
    return lock.status();
  }
  EngineRecord engine = *run.engines().Get(uid);
  absl::Status status = Prepare(run, engine);
  if (status.ok()) status = Form(run, engine);
  if (status.ok()) {
    run.RefreshEngine(uid);
    run.context().FailIfMemberLost(uid);
    return absl::OkStatus();
  }
  // A delete's or a shutdown's reason says more than what the abort it caused looked like.
  if (run.cancellation().cancelled()) status = run.cancellation().status();
  run.commands().Drop(engine.members, uid, engine.spec.name());
  run.engines().Apply(uid, EngineEvent::kFormFailed).IgnoreError();
  return EngineError(status, engine, run.phase());
}

}  // namespace regroup
