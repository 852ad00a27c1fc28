#include "daemon/control/control.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/control/operations.h"
#include "engine/layout/human_text.h"
#include "proto/rpc_status.h"

namespace regroup {
namespace {

absl::Status RoleError(absl::string_view field, const std::string& name, absl::string_view is,
                       absl::string_view allowed) {
  return MakeError(absl::StatusCode::kFailedPrecondition,
                   absl::StrCat(field, "=", name, " ", is, "; allowed: ", allowed),
                   v1::ERROR_REASON_INVALID_FIELD);
}

NodeRecord SelfOf(const ControlOptions& options) {
  NodeRecord self;
  self.name = options.node;
  self.first_rank = options.first_rank;
  self.ranks = options.limits.ranks;
  return self;
}

std::vector<int> RanksOf(const v1::Layout& layout) {
  return std::vector<int>(layout.ranks().begin(), layout.ranks().end());
}

std::vector<int> RanksOf(const EngineRecord& engine) { return RanksOf(engine.spec.layout()); }

}  // namespace

Control::Control(const ControlOptions& options, RankTable* ranks, RankCommands::Killer killer)
    : options_(options),
      context_(std::make_unique<OperationContext>(ranks, options.timing, std::move(killer),
                                                  options.store)),
      nodes_(SelfOf(options), options.store),
      requests_(options.store) {
  context_->operations().SetStartHook([this](const v1::Operation& operation) {
    accept_mutex_.AssertHeld();
    requests_.Remember(*accepted_id_, *accepted_request_, operation, absl::Now());
  });
  ranks->SetLostListener(
      [this](const WorkerRef& ref, const std::string& how) { context_->FailEnginesOn(ref, how); });
}

Control::~Control() {
  Shutdown(absl::InfiniteDuration());
  context_->ranks().SetLostListener(nullptr);
}

bool Control::Shutdown(absl::Duration grace) {
  if (!stop_said_.exchange(true)) stopping_.Notify();
  context_->tasks().Close();
  context_->operations().CancelAll(StoppingError());
  return context_->tasks().Wait(absl::Now() + grace);
}

absl::StatusOr<absl::optional<v1::Operation>> Control::FirstAnswer(
    const std::string& request_id, const google::protobuf::Message& request) {
  auto first = requests_.Find(request_id, request, absl::Now());
  if (!first.ok() || !first->has_value()) return first;
  // The same operation, as it is now; as it was then, if it is too old to be kept.
  const auto current = context_->operations().Get((*first)->id());
  return current.ok() ? absl::make_optional(*current) : *first;
}

absl::StatusOr<v1::Operation> Control::Once(const std::string& request_id,
                                            const google::protobuf::Message& request, Check check,
                                            Accept accept) {
  if (absl::Status status = CheckRequestId(request_id); !status.ok()) return status;
  {
    absl::MutexLock lock(&accept_mutex_);
    const auto first = FirstAnswer(request_id, request);
    if (!first.ok()) return first.status();
    if (first->has_value()) return **first;
  }
  if (absl::Status status = check(); !status.ok()) return status;
  absl::MutexLock lock(&accept_mutex_);
  const auto first = FirstAnswer(request_id, request);  // it may have come twice at once
  if (!first.ok()) return first.status();
  if (first->has_value()) return **first;
  accepted_id_ = &request_id;
  accepted_request_ = &request;
  const absl::StatusOr<std::string> id = accept();
  accepted_id_ = nullptr;
  accepted_request_ = nullptr;
  if (!id.ok()) return id.status();
  absl::StatusOr<v1::Operation> operation = context_->operations().Get(*id);
  if (operation.ok() && !(*requests_.Find(request_id, request, absl::Now())).has_value()) {
    requests_.Remember(request_id, request, *operation, absl::Now());
  }
  return operation;
}

absl::StatusOr<std::string> Control::OnceAsStream(const std::string& request_id,
                                                  const google::protobuf::Message& request,
                                                  Check check, Accept accept) {
  bool accepted = false;
  const absl::StatusOr<v1::Operation> operation = Once(request_id, request, check, [&] {
    accepted = true;
    return accept();
  });
  if (!operation.ok()) return operation.status();
  if (accepted) return operation->id();
  return MakeError(
      absl::StatusCode::kAlreadyExists,
      absl::StrCat("request_id '", Printable(request_id), "' was used before, by operation ",
                   operation->id(), "; a stream is not run twice; allowed: a new id"),
      v1::ERROR_REASON_INVALID_FIELD);
}

RequestLimits Control::LimitsOn(absl::Span<const int> ranks) const {
  RequestLimits limits;
  for (const RankInfo& info : context_->ranks().List()) {
    while (limits.ranks < info.rank) limits.missing.insert(limits.ranks++);
    limits.ranks = info.rank + 1;
  }
  const bool local = std::any_of(ranks.begin(), ranks.end(), [this](int rank) {
    return rank >= options_.first_rank && rank < options_.first_rank + options_.limits.ranks;
  });
  limits.roots = local ? options_.limits.roots : DataRoots::Elsewhere();
  return limits;
}

absl::Status Control::CheckRoom() const {
  if (context_->operations().Running().size() < kMaxOperations) return absl::OkStatus();
  return MakeError(absl::StatusCode::kResourceExhausted,
                   absl::StrCat("too many operations run or wait; allowed: ", kMaxOperations,
                                " at a time; try again later"),
                   v1::ERROR_REASON_UNSPECIFIED);
}

absl::StatusOr<EngineRecord> Control::FindUsable(const std::string& name,
                                                 absl::string_view kind) const {
  absl::StatusOr<EngineRecord> engine = context_->engines().Find(name);
  if (!engine.ok()) return engine;
  if (engine->state == v1::ENGINE_STATE_FAILED || engine->state == v1::ENGINE_STATE_DELETING ||
      engine->restored) {
    if (absl::Status status = CheckReady(*engine); !status.ok()) return status;
  }
  const bool trainer = engine->spec.role() == v1::ROLE_TRAIN;
  if (kind == "export" && !trainer) return NotAvailable("export of an inference engine");
  if ((kind == "train" || kind == "relayout") && !trainer) {
    v1::ErrorDetail detail;
    detail.set_reason(v1::ERROR_REASON_INVALID_FIELD);
    detail.set_engine(name);
    return MakeError(
        absl::StatusCode::kFailedPrecondition,
        absl::StrCat("engine ", name, " is an inference engine; allowed: ", kind, " of a trainer"),
        detail);
  }
  return engine;
}

TicketQueue::Place Control::TakeTurn(const std::vector<uint64_t>& engines) {
  return context_->engine_locks().Enter(std::vector<int64_t>(engines.begin(), engines.end()));
}

absl::StatusOr<std::string> Control::Start(OperationTable::Plan plan,
                                           std::function<absl::Status(OperationRun&)> body) {
  const std::vector<uint64_t> engines = plan.engine_uids;
  std::shared_ptr<Cancellation> cancellation = plan.cancellation;
  if (cancellation == nullptr) cancellation = std::make_shared<Cancellation>();
  const std::string id = context_->operations().Start(std::move(plan));
  // Operations on an engine run in the order in which they were accepted.
  auto turn = std::make_shared<TicketQueue::Place>(TakeTurn(engines));
  absl::Status started = StartTask([this, id, engines, turn, cancellation, body = std::move(body)] {
    OperationRun run(context_.get(), id, engines, std::move(*turn), cancellation);
    context_->operations().Finish(id, body(run));
  });
  if (started.ok()) return id;
  context_->operations().Finish(id, started);
  return started;
}

absl::StatusOr<v1::Operation> Control::CreateEngine(const v1::CreateEngineRequest& request) {
  absl::StatusOr<v1::EngineSpec> spec;
  const auto check = [&] {
    spec = CheckCreate(request, LimitsOn(RanksOf(request.spec().layout())));
    return spec.status();
  };
  return Once(request.request_id(), request, check, [&]() -> absl::StatusOr<std::string> {
    if (absl::Status status = CheckRoom(); !status.ok()) return status;
    const absl::StatusOr<uint64_t> uid = context_->engines().Add(*spec);
    if (!uid.ok()) return uid.status();
    absl::StatusOr<std::string> id =
        Start({"create", spec->name(), {*uid}, std::make_shared<Cancellation>()},
              [uid = *uid](OperationRun& run) { return RunCreate(run, uid); });
    if (!id.ok()) context_->engines().Apply(*uid, EngineEvent::kFormFailed).IgnoreError();
    return id;
  });
}

absl::StatusOr<v1::Operation> Control::DeleteEngine(const v1::DeleteEngineRequest& request) {
  const auto check = [] { return absl::OkStatus(); };
  return Once(request.request_id(), request, check, [&]() -> absl::StatusOr<std::string> {
    const absl::StatusOr<EngineRecord> engine = context_->engines().Find(request.name());
    if (!engine.ok()) return engine.status();
    const uint64_t uid = engine->uid;
    if (absl::Status status = context_->engines().Apply(uid, EngineEvent::kDelete); !status.ok()) {
      return EngineError(status, *engine, "delete");
    }
    context_->operations().CancelOn(
        uid, CancelledError(absl::StrCat("engine ", request.name(), " is being deleted")));
    return Start(
        {"delete", request.name(), {uid}, nullptr},
        [uid, name = request.name()](OperationRun& run) { return RunDelete(run, uid, name); });
  });
}

absl::StatusOr<v1::Operation> Control::RelayoutEngine(const v1::RelayoutEngineRequest& request) {
  absl::StatusOr<v1::RelayoutEngineRequest> checked;
  const auto check = [&] {
    checked = CheckRelayout(request, LimitsOn({}));
    if (!checked.ok()) return checked.status();
    const absl::StatusOr<EngineRecord> engine = context_->engines().Find(request.name());
    if (!engine.ok()) return engine.status();
    // Ranks that do not hold the engine yet open its model.
    const std::vector<int> holders = RanksOf(*engine);
    std::vector<int> guests = RanksOf(request.layout());
    guests.erase(std::remove_if(guests.begin(), guests.end(),
                                [&holders](int rank) {
                                  return std::find(holders.begin(), holders.end(), rank) !=
                                         holders.end();
                                }),
                 guests.end());
    return guests.empty() ? absl::OkStatus()
                          : CheckModelPath(engine->spec.model(), LimitsOn(guests));
  };
  return Once(request.request_id(), request, check, [&]() -> absl::StatusOr<std::string> {
    const absl::StatusOr<EngineRecord> engine = FindUsable(request.name(), "relayout");
    if (!engine.ok()) return engine.status();
    if (absl::Status status = CheckRoom(); !status.ok()) return status;
    return Start({"relayout", request.name(), {engine->uid}, std::make_shared<Cancellation>()},
                 [uid = engine->uid, request = *checked](OperationRun& run) {
                   return RunRelayout(run, uid, request);
                 });
  });
}

absl::StatusOr<v1::Operation> Control::SyncEngine(const v1::SyncEngineRequest& request) {
  const auto check = [&] { return CheckSync(request); };
  return Once(request.request_id(), request, check, [&]() -> absl::StatusOr<std::string> {
    const absl::StatusOr<EngineRecord> source = FindUsable(request.source(), "sync");
    if (!source.ok()) return source.status();
    const absl::StatusOr<EngineRecord> destination = FindUsable(request.destination(), "sync");
    if (!destination.ok()) return destination.status();
    if (source->spec.role() != v1::ROLE_TRAIN) {
      return RoleError("SRC", request.source(), "is an inference engine", "a trainer");
    }
    if (destination->spec.role() != v1::ROLE_INFER) {
      return RoleError("DST", request.destination(), "is a trainer", "an inference engine");
    }
    if (absl::Status status = CheckRoom(); !status.ok()) return status;
    return Start({"sync",
                  request.destination(),
                  {source->uid, destination->uid},
                  std::make_shared<Cancellation>()},
                 [source = source->uid, destination = destination->uid](OperationRun& run) {
                   return RunSync(run, source, destination);
                 });
  });
}

absl::StatusOr<v1::Operation> Control::ExportEngine(const v1::ExportEngineRequest& request) {
  absl::StatusOr<v1::ExportEngineRequest> checked;
  const auto check = [&] {
    const absl::StatusOr<EngineRecord> engine = FindUsable(request.name(), "export");
    if (!engine.ok()) return engine.status();
    checked = CheckExport(request, LimitsOn({engine->spec.layout().ranks(0)}));
    return checked.status();
  };
  return Once(request.request_id(), request, check, [&]() -> absl::StatusOr<std::string> {
    const absl::StatusOr<EngineRecord> engine = FindUsable(request.name(), "export");
    if (!engine.ok()) return engine.status();
    if (absl::Status status = CheckRoom(); !status.ok()) return status;
    return Start({"export", request.name(), {engine->uid}, std::make_shared<Cancellation>()},
                 [uid = engine->uid, directory = checked->directory()](OperationRun& run) {
                   return RunExport(run, uid, directory);
                 });
  });
}

absl::StatusOr<v1::Operation> Control::SetEngine(const v1::SetEngineRequest& request) {
  const auto check = [&] {
    const absl::StatusOr<EngineRecord> engine = FindUsable(request.name(), "set");
    return engine.ok() ? CheckSet(request, engine->spec.role()) : engine.status();
  };
  return Once(request.request_id(), request, check, [&]() -> absl::StatusOr<std::string> {
    const absl::StatusOr<EngineRecord> engine = FindUsable(request.name(), "set");
    if (!engine.ok()) return engine.status();
    if (absl::Status status = CheckRoom(); !status.ok()) return status;
    return Start(
        {"set", request.name(), {engine->uid}, std::make_shared<Cancellation>()},
        [uid = engine->uid, request](OperationRun& run) { return RunSet(run, uid, request); });
  });
}

absl::StatusOr<v1::Operation> Control::CancelOperation(const v1::CancelOperationRequest& request) {
  const auto check = [] { return absl::OkStatus(); };
  return Once(request.request_id(), request, check, [&]() -> absl::StatusOr<std::string> {
    const auto cancelled = context_->operations().Cancel(
        request.id(), CancelledError(absl::StrCat("operation ", request.id(), " was cancelled")));
    if (!cancelled.ok()) return cancelled.status();
    return cancelled->id();
  });
}

absl::Status Control::Train(const v1::TrainRequest& request,
                            std::shared_ptr<Cancellation> cancellation, const Accepted& accepted,
                            const std::function<bool(const v1::TrainRecord&)>& emit) {
  absl::StatusOr<v1::TrainRequest> checked;
  uint64_t uid = 0;
  TicketQueue::Place turn;
  const auto check = [&] {
    const absl::StatusOr<EngineRecord> engine = FindUsable(request.name(), "train");
    if (!engine.ok()) return engine.status();
    checked = CheckTrain(request, LimitsOn(RanksOf(*engine)));
    return checked.status();
  };
  const absl::StatusOr<std::string> id =
      OnceAsStream(request.request_id(), request, check, [&]() -> absl::StatusOr<std::string> {
        const absl::StatusOr<EngineRecord> engine = FindUsable(request.name(), "train");
        if (!engine.ok()) return engine.status();
        if (absl::Status status = CheckRoom(); !status.ok()) return status;
        uid = engine->uid;
        turn = TakeTurn({uid});
        return context_->operations().Start({"train", request.name(), {uid}, cancellation});
      });
  if (!id.ok()) return id.status();
  accepted(*id);
  OperationRun run(context_.get(), *id, {uid}, std::move(turn), cancellation);
  absl::Status status = RunTrain(run, uid, *checked, emit);
  context_->operations().Finish(*id, status);
  return status;
}

absl::Status Control::Generate(const v1::GenerateRequest& request,
                               std::shared_ptr<Cancellation> cancellation, const Accepted& accepted,
                               const std::function<bool(const v1::GenerateResponse&)>& emit) {
  uint64_t uid = 0;
  TicketQueue::Place turn;
  const auto check = [&] {
    const absl::Status status = FindUsable(request.name(), "generate").status();
    return status.ok() ? CheckGenerate(request) : status;
  };
  const absl::StatusOr<std::string> id =
      OnceAsStream(request.request_id(), request, check, [&]() -> absl::StatusOr<std::string> {
        const absl::StatusOr<EngineRecord> engine = FindUsable(request.name(), "generate");
        if (!engine.ok()) return engine.status();
        if (absl::Status status = CheckRoom(); !status.ok()) return status;
        uid = engine->uid;
        turn = TakeTurn({uid});
        return context_->operations().Start({"generate", request.name(), {uid}, cancellation});
      });
  if (!id.ok()) return id.status();
  accepted(*id);
  OperationRun run(context_.get(), *id, {uid}, std::move(turn), cancellation);
  absl::Status status = RunGenerate(run, uid, request, emit);
  context_->operations().Finish(*id, status);
  return status;
}

}  // namespace regroup
