// Control after a restart of its daemon: takes over nodes, engines and operations from the store,
// and finds out what the workers of other nodes hold.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/control/control.h"
#include "daemon/control/operations.h"
#include "daemon/control/restore.h"
#include "proto/rpc_status.h"
#include "spdlog/spdlog.h"

namespace regroup {
namespace {

constexpr absl::Duration kLook = absl::Milliseconds(100);

}  // namespace

absl::Status Control::Restore() {
  absl::Status status = nodes_.Restore();
  if (status.ok()) status = context_->engines().Restore();
  if (status.ok()) status = context_->operations().Restore();
  if (status.ok()) {
    absl::MutexLock lock(&accept_mutex_);
    status = requests_.Restore();
  }
  if (!status.ok()) return status;
  for (const NodeRecord& node : nodes_.List()) {
    if (node.name == options_.node) continue;
    context_->ranks().AddRanks(node.first_rank, node.ranks, node.name, v1::RANK_STATE_LOST);
  }
  for (const EngineRecord& engine : context_->engines().List()) {
    if (!engine.restored || engine.state != v1::ENGINE_STATE_FORMING) continue;
    status = StartTask([this, uid = engine.uid] { FindRanksOf(uid); });
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

// What there is to know of the engine's members now.
std::vector<MemberReport> Control::ReportsOf(const EngineRecord& engine) {
  std::vector<MemberReport> reports;
  std::vector<WorkerRef> found;
  for (const WorkerRef& member : engine.members) {
    MemberReport& report = reports.emplace_back();
    report.member = member;
    report.node = context_->ranks().NodeOf(member.rank);
    const absl::optional<WorkerRef> serving = context_->ranks().Serving(member.rank);
    // This node's own workers ended with the daemon that started them.
    if (report.node.empty() || (serving.has_value() && !(*serving == member))) {
      report.known = MemberReport::Known::kGone;
    } else if (serving.has_value() && context_->ranks().IsReady(member)) {  // Attached was called
      found.push_back(member);
    }
  }
  const std::vector<absl::StatusOr<v1::WorkerState>> states = context_->commands().AskStates(found);
  for (size_t i = 0; i < found.size(); ++i) {
    if (!states[i].ok()) continue;
    const auto report = std::find_if(reports.begin(), reports.end(), [&](const MemberReport& each) {
      return each.member == found[i];
    });
    report->known = MemberReport::Known::kHolds;
    for (const v1::HeldEngine& held : states[i]->engines()) {
      if (held.uid() == engine.uid) report->held = held;
      if (held.standing().move().destination_uid() == engine.uid) report->sync_pending = true;
    }
  }
  return reports;
}

bool Control::WasDecided(const v1::PendingMove& sync) const {
  const absl::optional<EngineRecord> destination = context_->engines().Get(sync.destination_uid());
  return destination.has_value() && destination->syncs >= sync.generation();
}

void Control::FindRanksOf(uint64_t uid) {
  while (!stopping_.WaitForNotificationWithTimeout(kLook)) {
    const absl::optional<EngineRecord> engine = context_->engines().Get(uid);
    // It may be deleted in the meantime.
    if (!engine.has_value() || engine->state != v1::ENGINE_STATE_FORMING) return;
    const std::vector<MemberReport> reports = ReportsOf(*engine);
    const RestoreDecision decision = DecideRestore(
        *engine, reports, [this](const v1::PendingMove& move) { return WasDecided(move); });
    if (!decision.status.ok() && decision.step != RestoreDecision::Step::kFail) {
      context_->engines().Update(uid, [&](EngineRecord& record) {
        if (record.state == v1::ENGINE_STATE_FORMING) record.failure = decision.status;
      });
    }
    Carry(*engine, reports, decision);
  }
}

void Control::Carry(const EngineRecord& engine, const std::vector<MemberReport>& reports,
                    const RestoreDecision& decision) {
  v1::Command command;
  bool is_step = false;
  switch (decision.step) {
    case RestoreDecision::Step::kWait:
      return;
    case RestoreDecision::Step::kReady: {
      const v1::HeldEngine& held = reports.front().held;
      // Nobody asks for the rest of a generation.
      command.set_engine_uid(engine.uid);
      command.mutable_end_generation();
      context_->commands().TellAsync(engine.members, command, [] {});
      context_->engines()
          .Apply(engine.uid, EngineEvent::kFormed,
                 [&](EngineRecord& record) {
                   record.failure = absl::OkStatus();
                   record.restored = record.was_moving = false;
                   record.step = held.standing().step();
                   record.data_position = held.standing().data_position();
                   record.weights_version = held.standing().weights_version();
                   record.groups.assign(held.groups().begin(), held.groups().end());
                 })
          .IgnoreError();
      context_->commands().Refresh(engine.members);
      context_->FailIfMemberLost(engine.uid);
      return;
    }
    case RestoreDecision::Step::kFail: {
      const absl::Status applied = context_->engines().Apply(
          engine.uid, EngineEvent::kLostForGood,
          [&](EngineRecord& record) { record.failure = decision.status; });
      if (!applied.ok()) return;
      for (const WorkerRef& member : engine.members) {
        context_->commands().AbortOn(member, engine.uid, /*move_only=*/false,
                                     std::string(decision.status.message()));
      }
      context_->commands().DropAsync(engine.members, engine.uid, engine.spec.name(), [] {});
      return;
    }
    case RestoreDecision::Step::kAbortMove:
      for (size_t i : decision.members) {
        context_->commands().AbortOn(engine.members[i], engine.uid, /*move_only=*/true,
                                     "the primary restarted before the move was decided");
      }
      return;
    case RestoreDecision::Step::kJoinStep:
      command.mutable_train_step();
      is_step = true;
      break;
    case RestoreDecision::Step::kCommit:
      command.mutable_commit_move();
      break;
    case RestoreDecision::Step::kRollBack:
      command.mutable_roll_back_move();
      break;
  }
  std::vector<WorkerRef> members;
  for (size_t i : decision.members) members.push_back(engine.members[i]);
  Cancellation never;
  const auto ticket = context_->commands().TakeTicket(members, never);
  if (!ticket.ok()) return;
  RankCommands::Options options;
  options.engines = {engine.uid};
  options.of_move = !is_step;
  const RankCommands::Outcome outcome = context_->commands().Run(
      *ticket, members, engine.uid, [&command](size_t) { return command; }, options, never);
  if (outcome.status.ok()) return;
  spdlog::warn("engine {}: {}", engine.spec.name(), std::string(outcome.status.message()));
  if (is_step) return;  // what became of it shows at the next look
  for (size_t i = 0; i < members.size(); ++i) {
    const absl::Status& status = outcome.statuses[i].status;
    if (status.ok() || absl::IsNotFound(status)) continue;
    context_->commands().KillAndWait(
        members[i], absl::StrCat("could not settle a move (", status.message(), ")"));
  }
}

void Control::Attached(const WorkerRef& ref, const v1::WorkerState& state) {
  for (const v1::HeldEngine& held : state.engines()) {
    const absl::optional<EngineRecord> engine = context_->engines().Get(held.uid());
    if (engine.has_value() && HoldsRanks(*engine)) {
      const auto& members = engine->members;
      if (std::find(members.begin(), members.end(), ref) != members.end()) continue;
    }
    v1::Command command;
    command.set_engine_uid(held.uid());
    const v1::PendingMove& move = held.standing().move();
    const bool guest_of_sync = !held.standing().formed() && move.destination_uid() != 0;
    if (guest_of_sync && move.verified() && WasDecided(move)) {
      command.mutable_commit_move();
    } else {
      spdlog::info("rank {}: it holds engine {}, which does not lie there; dropping it", ref.rank,
                   held.name());
      if (held.standing().commands() > 0) {
        context_->commands().AbortOn(ref, held.uid(), /*move_only=*/false,
                                     "the engine does not lie on this rank any more");
      }
      command.mutable_drop_engine();
    }
    context_->commands().TellAsync({ref}, command, [] {});
  }
}

}  // namespace regroup
