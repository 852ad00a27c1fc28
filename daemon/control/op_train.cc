#include <string>

#include "absl/strings/str_cat.h"
#include "daemon/control/operations.h"

namespace regroup {
namespace {

// Local: a bad file or row shows before any step.
absl::Status Check(OperationRun& run, const EngineRecord& engine, const v1::TrainRequest& request) {
  run.SetPhase("check");
  return run
      .RunPhase(
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
          run.Options(RankCommands::OnError::kNothing), run.cancellation())
      .status;
}

// One step on all ranks, and what it did to the engine. An error after the step began has broken
// the engine.
absl::StatusOr<v1::TrainRecord> Step(OperationRun& run, const EngineRecord& engine) {
  const absl::Time start = absl::Now();
  const absl::StatusOr<TicketQueue::Ticket> ticket =
      run.commands().TakeTicket(engine.members, run.cancellation());
  if (!ticket.ok()) return ticket.status();
  const RankCommands::Outcome outcome = run.commands().Run(
      *ticket, engine.members, engine.uid,
      [](size_t) {
        v1::Command command;
        command.mutable_train_step();
        return command;
      },
      run.Options(RankCommands::OnError::kAbortEngine), run.cancellation());
  if (!outcome.status.ok()) {
    run.context().FailEngine(engine.uid, outcome.status);
    return outcome.status;
  }
  const v1::TrainStepResult& result = outcome.results.front().train_step();
  v1::TrainRecord record = result.record();
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
