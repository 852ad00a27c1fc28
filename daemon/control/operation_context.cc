#include "daemon/control/operation_context.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "daemon/control/validate.h"
#include "proto/rpc_status.h"

namespace regroup {

absl::Status EngineError(const absl::Status& status, const EngineRecord& engine,
                         absl::string_view phase) {
  if (status.ok()) return status;
  v1::ErrorDetail detail = DetailOf(status).value_or(v1::ErrorDetail());
  if (detail.engine().empty()) detail.set_engine(engine.spec.name());
  if (detail.engine() == engine.spec.name()) detail.set_generation(engine.generation);
  // The operation's phase: a worker names the command that failed in it.
  if (!phase.empty()) detail.set_phase(std::string(phase));
  const std::string who = absl::StrCat("engine ", engine.spec.name());
  const bool named = absl::StrContains(status.message(), who);
  return MakeError(status.code(),
                   absl::StrCat(named ? "" : who, named ? "" : ": ", status.message()), detail);
}

absl::Status CheckReady(const EngineRecord& engine) {
  if (engine.state == v1::ENGINE_STATE_READY) return absl::OkStatus();
  v1::ErrorDetail detail;
  detail.set_engine(engine.spec.name());
  if (engine.restored && engine.state == v1::ENGINE_STATE_FORMING) {
    detail.set_reason(v1::ERROR_REASON_RANK_LOST);
    return MakeError(absl::StatusCode::kUnavailable,
                     absl::StrCat("engine ", engine.spec.name(), " is not found again yet: ",
                                  engine.failure.ok() ? "the primary has just restarted"
                                                      : std::string(engine.failure.message()),
                                  "; try again later"),
                     detail);
  }
  detail.set_reason(v1::ERROR_REASON_ENGINE_FAILED);
  detail.set_generation(engine.generation);
  return MakeError(
      absl::StatusCode::kFailedPrecondition,
      absl::StrCat("engine ", engine.spec.name(), " is ", StateName(engine.state),
                   engine.failure.ok() ? "" : absl::StrCat(": ", engine.failure.message()),
                   "; allowed: a READY engine",
                   engine.failure.ok() ? "" : " (delete this one and create it again)"),
      detail);
}

OperationContext::OperationContext(RankTable* ranks, const OperationTiming& timing,
                                   RankCommands::Killer killer, Store* store)
    : ranks_(ranks),
      timing_(timing),
      engines_(store),
      operations_(store),
      commands_(ranks, timing.commands, std::move(killer)) {}

void OperationContext::FailEngine(uint64_t uid, const absl::Status& reason) {
  std::vector<WorkerRef> members;
  std::string name;
  const absl::Status applied = engines_.Apply(uid, EngineEvent::kFail, [&](EngineRecord& engine) {
    engine.failure = reason;
    members = engine.members;
    name = engine.spec.name();
  });
  if (!applied.ok()) return;
  operations_.CancelOn(uid, reason);
  commands_.DropAsync(members, uid, name, [] {});
}

void OperationContext::FailEnginesOn(const WorkerRef& lost, const std::string& how) {
  for (const EngineRecord& engine : engines_.List()) {
    const auto& members = engine.members;
    if (std::find(members.begin(), members.end(), lost) == members.end()) continue;
    FailEngine(engine.uid, RankLostError(lost.rank, how));
  }
}

void OperationContext::FailIfMemberLost(uint64_t uid) {
  const absl::optional<EngineRecord> engine = engines_.Get(uid);
  if (!engine.has_value()) return;
  for (const WorkerRef& member : engine->members) {
    const auto client = ranks_->Find(member);
    if (!client.ok()) FailEngine(uid, client.status());
  }
}

OperationRun::OperationRun(OperationContext* context, std::string id, std::vector<uint64_t> engines,
                           TicketQueue::Place turn, std::shared_ptr<Cancellation> cancellation)
    : context_(context),
      id_(std::move(id)),
      engines_(std::move(engines)),
      turn_(std::move(turn)),
      cancellation_(std::move(cancellation)) {}

absl::Status OperationRun::WhyUnheard() const {
  const absl::Status why = cancellation_->status();
  return why.ok() ? CancelledError("the client went away") : why;
}

void OperationRun::SetPhase(const std::string& phase) {
  if (phase_ == phase) return;
  phase_ = phase;
  context_->operations().Update(id_, [&](v1::Operation& op) { op.set_phase(phase); });
}

void OperationRun::SetProgress(int64_t bytes_done, int64_t bytes_total) {
  context_->operations().Update(id_, [&](v1::Operation& op) {
    op.set_bytes_moved(bytes_done);
    op.set_bytes_total(bytes_total);
  });
}

void OperationRun::SetPeakBytes(int64_t bytes) {
  context_->operations().Update(id_, [&](v1::Operation& op) { op.set_peak_bytes(bytes); });
}

void OperationRun::SetDetail(const std::string& text) {
  context_->operations().Update(id_, [&](v1::Operation& op) { op.set_detail(text); });
}

absl::Duration OperationRun::LocalTimeout(const v1::EngineSpec& spec) const {
  return TimeoutOf(spec) + context_->timing().commands.local_margin;
}

absl::Status OperationRun::FailureOf(uint64_t uid) {
  const absl::optional<EngineRecord> engine = engines().Get(uid);
  if (!engine.has_value() || engine->state != v1::ENGINE_STATE_FAILED) return absl::OkStatus();
  return engine->failure;
}

RankCommands::Options OperationRun::Options(RankCommands::OnError on_error) const {
  RankCommands::Options options;
  options.on_error = on_error;
  options.engines = engines_;
  return options;
}

RankCommands::Outcome OperationRun::RunPhase(const std::vector<WorkerRef>& members, uint64_t uid,
                                             absl::FunctionRef<v1::Command(size_t)> make,
                                             const RankCommands::Options& options,
                                             Cancellation& cancellation) {
  const absl::StatusOr<TicketQueue::Ticket> ticket = commands().TakeTicket(members, cancellation);
  if (!ticket.ok()) {
    RankCommands::Outcome outcome;
    outcome.status = ticket.status();
    return outcome;
  }
  return commands().Run(*ticket, members, uid, make, options, cancellation);
}

OperationRun::Lock::~Lock() {
  if (!ticket_.held()) return;
  for (uint64_t uid : uids_) {
    context_->engines().Update(uid, [](EngineRecord& engine) { engine.activity.clear(); });
  }
}

absl::StatusOr<OperationRun::Lock> OperationRun::LockEngines(const std::string& activity) {
  absl::StatusOr<TicketQueue::Ticket> ticket = turn_.Wait(*cancellation_);
  if (!ticket.ok()) return ticket.status();
  Lock lock(context_, engines_, *std::move(ticket));
  for (uint64_t uid : engines_) {
    if (!engines().Get(uid).has_value()) {
      v1::ErrorDetail detail;
      detail.set_reason(v1::ERROR_REASON_CANCELLED);
      const absl::StatusOr<v1::Operation> operation = context_->operations().Get(id_);
      if (operation.ok()) detail.set_engine(operation->engine());
      return MakeError(absl::StatusCode::kNotFound,
                       absl::StrCat("engine ", detail.engine(), " was deleted before its turn"),
                       detail);
    }
    engines().Update(uid, [&](EngineRecord& engine) { engine.activity = activity; });
  }
  return lock;
}

void OperationRun::RefreshEngine(uint64_t uid) {
  const absl::optional<EngineRecord> engine = engines().Get(uid);
  if (!engine.has_value() || engine->members.empty()) return;
  commands().Refresh(engine->members);
  int64_t peak = 0;
  for (const WorkerRef& member : engine->members) {
    const auto held = context_->ranks().Held(member, uid);
    if (held.has_value()) peak = std::max(peak, held->memory().peak_bytes());
  }
  if (peak > 0) SetPeakBytes(peak);
  const auto held = context_->ranks().Held(engine->members.front(), uid);
  if (!held.has_value() || held->groups().empty()) return;
  engines().Update(uid, [&](EngineRecord& record) {
    record.groups.assign(held->groups().begin(), held->groups().end());
  });
}

}  // namespace regroup
