#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "daemon/control/operations.h"
#include "daemon/control/validate.h"

namespace regroup {
namespace {

// What the request asks for, put over what the engine has. Returns what changes, for people.
std::string Put(const v1::SetEngineRequest& request, v1::EngineSpec* spec) {
  std::vector<std::string> changes;
  if (request.has_learning_rate()) {
    const double lr = request.learning_rate();
    changes.push_back(absl::StrCat("lr ", spec->optimizer().learning_rate(), " -> ", lr));
    spec->mutable_optimizer()->set_learning_rate(lr);
  }
  if (request.checks() != v1::CHECK_LEVEL_UNSPECIFIED) {
    changes.push_back(absl::StrCat("checks ", CheckLevelName(spec->checks()), " -> ",
                                   CheckLevelName(request.checks())));
    spec->set_checks(request.checks());
  }
  if (request.has_timeout()) {
    const absl::Duration before = TimeoutOf(*spec);
    *spec->mutable_timeout() = request.timeout();
    changes.push_back(absl::StrCat("timeout ", absl::FormatDuration(before), " -> ",
                                   absl::FormatDuration(TimeoutOf(*spec))));
  }
  return absl::StrJoin(changes, ", ");
}

}  // namespace

absl::Status RunSet(OperationRun& run, uint64_t uid, const v1::SetEngineRequest& request) {
  const absl::StatusOr<OperationRun::Lock> lock = run.LockEngines("set");
  if (!lock.ok()) return lock.status();
  const EngineRecord engine = *run.engines().Get(uid);
  if (absl::Status status = CheckReady(engine); !status.ok()) return status;
  v1::EngineSpec spec = engine.spec;
  const std::string changes = Put(request, &spec);
  run.SetPhase("apply");
  // The ranks of a trainer agree on it; a worker of an inference engine can't refuse it.
  const RankCommands::Outcome outcome = run.RunPhase(
      engine.members, uid,
      [&spec](size_t) {
        v1::Command command;
        v1::SetSettings& set = *command.mutable_set_settings();
        set.set_learning_rate(spec.optimizer().learning_rate());
        set.set_checks(spec.checks());
        *set.mutable_timeout() = spec.timeout();
        return command;
      },
      run.Options(RankCommands::OnError::kAbortIfBroken), run.cancellation());
  if (outcome.engine_broken) run.context().FailEngine(uid, outcome.status);
  if (!outcome.status.ok()) return EngineError(outcome.status, engine, run.phase());
  const auto change = [&spec](EngineRecord& record) {
    *record.spec.mutable_optimizer() = spec.optimizer();
    record.spec.set_checks(spec.checks());
    *record.spec.mutable_timeout() = spec.timeout();
  };
  if (absl::Status kept = run.engines().Decide(uid, change); !kept.ok()) {
    run.engines().Update(uid, change);  // the ranks have it, until the primary restarts
    return EngineError(kept, engine, run.phase());
  }
  run.SetDetail(changes);
  return absl::OkStatus();
}

}  // namespace regroup
