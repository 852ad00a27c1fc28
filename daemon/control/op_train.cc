#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "daemon/control/operations.h"
#include "proto/rpc_status.h"

namespace regroup {
namespace {

// Local: a bad file or row shows before any step, and so does a file that is another one on another
// rank.
absl::Status Check(OperationRun& run, const EngineRecord& engine, const v1::TrainRequest& request) {
  run.SetPhase("check");
  const RankCommands::Outcome checked = run.RunPhase(
      engine.members, engine.uid,
      [&request](size_t) {
        v1::Command command;
        v1::CheckTraining& check = *command.mutable_check_training();
        check.set_data(request.data());
        check.set_steps(request.steps());
        check.set_batch(request.batch());
        check.set_seq(request.seq());
        check.set_accumulate(request.accumulate());
        return command;
      },
      run.Options(RankCommands::OnError::kNothing), run.cancellation());
  if (!checked.status.ok()) return checked.status;
  const std::string& first = checked.results.front().check_training().digest();
  v1::ErrorDetail detail;
  for (size_t i = 1; i < checked.results.size(); ++i) {
    if (checked.results[i].check_training().digest() != first) {
      detail.add_ranks(engine.members[i].rank);
    }
  }
  if (detail.ranks().empty()) return absl::OkStatus();
  detail.set_reason(v1::ERROR_REASON_RANKS_DISAGREE);
  return MakeError(absl::StatusCode::kAborted,
                   absl::StrCat("--data=", request.data(),
                                ": ranks disagree: ", absl::StrJoin(detail.ranks(), ","),
                                " see another file than rank ", engine.members.front().rank,
                                "; allowed: one file, the same on every rank"),
                   detail);
}

// One step on all ranks, and what it did to the engine.
absl::StatusOr<v1::TrainRecord> Step(OperationRun& run, const EngineRecord& engine) {
  const absl::Time start = absl::Now();
  const RankCommands::Outcome outcome = run.RunPhase(
      engine.members, engine.uid,
      [](size_t) {
        v1::Command command;
        command.mutable_train_step();
        return command;
      },
      run.Options(RankCommands::OnError::kAbortIfBroken), run.cancellation());
  if (outcome.engine_broken) run.context().FailEngine(engine.uid, outcome.status);
  if (!outcome.status.ok()) return outcome.status;
  const v1::TrainStepResult& result = outcome.results.front().train_step();
  v1::TrainRecord record = result.record();
  record.set_operation(run.id());
  if (record.seconds() == 0) record.set_seconds(absl::ToDoubleSeconds(absl::Now() - start));
  run.engines().Update(engine.uid, [&](EngineRecord& now) {
    now.step = record.step();
    now.data_position = record.data_position();
    now.weights_version = result.weights_version();
  });
  return record;
}

}  // namespace

absl::Status RunTrain(OperationRun& run, uint64_t uid, const v1::TrainRequest& request,
                      const std::function<bool(const v1::TrainRecord&)>& emit) {
  const absl::StatusOr<OperationRun::Lock> lock = run.LockEngines("train");
  if (!lock.ok()) return lock.status();
  const EngineRecord engine = *run.engines().Get(uid);
  if (absl::Status status = CheckReady(engine); !status.ok()) return status;
  absl::Status status = Check(run, engine, request);
  if (status.ok()) run.SetPhase("step");
  for (int64_t i = 0; status.ok() && i < request.steps(); ++i) {
    run.SetDetail(absl::StrCat("step ", i + 1, " of ", request.steps()));
    const absl::StatusOr<v1::TrainRecord> record = Step(run, engine);
    status = record.status();
    if (status.ok() && !emit(*record)) status = run.WhyUnheard();
    if (status.ok()) status = run.cancellation().status();
  }
  run.RefreshEngine(uid);
  return EngineError(status, engine, run.phase());
}

}  // namespace regroup
