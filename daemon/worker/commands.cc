#include "daemon/worker/commands.h"

#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "daemon/worker/proto_convert.h"
#include "engine/group/comm_status.h"
#include "engine/model/load.h"
#include "proto/rpc_status.h"

namespace regroup {
namespace {

// For messages: the name of the oneof field.
std::string CommandName(const v1::Command& command) {
  const google::protobuf::OneofDescriptor* oneof = v1::Command::descriptor()->oneof_decl(0);
  const google::protobuf::FieldDescriptor* field =
      v1::Command::GetReflection()->GetOneofFieldDescriptor(command, oneof);
  return field == nullptr ? "command" : std::string(field->name());
}

}  // namespace

Commands::Commands(WorkerIdentity identity, EngineTable* table)
    : identity_(std::move(identity)), table_(table) {}

absl::StatusOr<v1::CommandResult> Commands::Run(const v1::Command& command) {
  const std::string name = CommandName(command);
  std::shared_ptr<HeldEngine> engine = table_->Find(command.engine_uid());
  const std::string engine_name = engine != nullptr ? engine->spec.name : "";
  if (engine != nullptr) {
    engine->bytes_done = 0;
    engine->bytes_total = 0;
    if (engine->inference != nullptr) engine->ForgetAbort();
    engine->SetRunning(name);
  }
  engine = nullptr;
  v1::CommandResult result;
  const absl::Status status = CatchStatus(absl::StrCat("rank ", identity_.rank, ", ", name),
                                          [&] { return Dispatch(command, &result); });
  const bool broken = !status.ok() && NoteFailure(command.engine_uid(), status);
  UpdateStandings();
  if (status.ok()) return result;
  return WithErrorDetail(status, engine_name, name, broken);
}

void Commands::UpdateStandings() const {
  for (const std::shared_ptr<HeldEngine>& engine : table_->List()) {
    v1::Standing standing;
    standing.set_formed(engine->formed() && !engine->is_guest);
    standing.set_failed(!engine->failure.ok());
    for (int rank : engine->spec.layout.ranks) standing.add_ranks(rank);
    const std::shared_ptr<Trainer> trainer = engine->trainer();
    const EngineState* state = trainer != nullptr             ? &trainer->state()
                               : engine->inference != nullptr ? &engine->inference->state()
                                                              : nullptr;
    if (state != nullptr) {
      standing.set_step(state->step);
      standing.set_data_position(state->data_position);
      standing.set_weights_version(state->weights_version);
    }
    if (engine->pending != nullptr) {
      v1::PendingMove& move = *standing.mutable_move();
      move.set_verified(engine->pending->verified);
      move.set_generation(engine->pending->generation);
      move.set_destination_uid(engine->pending->is_sync ? engine->pending->destination_uid : 0);
      move.set_weights_version(engine->pending->options.weights_version);
    }
    engine->SetStanding(std::move(standing));
    engine->SetRunning("");
  }
}

bool Commands::NoteFailure(uint64_t uid, const absl::Status& status) {
  const std::shared_ptr<HeldEngine> engine = table_->Find(uid);
  if (engine == nullptr) return false;
  const std::shared_ptr<Trainer> trainer = engine->trainer();
  if (trainer != nullptr && engine->failure.ok() && !trainer->group().failure().ok()) {
    engine->failure = status;
  }
  return !engine->failure.ok();
}

absl::Status Commands::Dispatch(const v1::Command& command, v1::CommandResult* result) {
  const uint64_t uid = command.engine_uid();
  switch (command.command_case()) {
    case v1::Command::kPrepareEngine:
      return PrepareEngine(uid, command.prepare_engine(), result->mutable_prepare_engine());
    case v1::Command::kFormEngine:
      return FormEngine(uid, command.form_engine(), result->mutable_form_engine());
    case v1::Command::kDropEngine:
      return DropEngine(uid);
    case v1::Command::kPrepareMove:
      return PrepareMove(uid, command.prepare_move(), result->mutable_prepare_move());
    case v1::Command::kAgreeMove:
      return AgreeMove(uid, command.agree_move());
    case v1::Command::kRunMove:
      return RunMove(uid, result->mutable_run_move());
    case v1::Command::kCommitMove:
      return CommitMove(uid);
    case v1::Command::kRollBackMove:
      return RollBackMove(uid);
    case v1::Command::kCheckTraining: {
      const auto engine = FormedTrainer(uid);
      if (!engine.ok()) return engine.status();
      return CheckTraining(engine->get(), command.check_training(),
                           result->mutable_check_training());
    }
    case v1::Command::kTrainStep: {
      const auto engine = FormedTrainer(uid);
      if (!engine.ok()) return engine.status();
      if (absl::Status status = CheckNotMoving(**engine); !status.ok()) return status;
      return TrainStep(engine->get(), result->mutable_train_step());
    }
    case v1::Command::kCheckExport: {
      const auto engine = Formed(uid);
      if (!engine.ok()) return engine.status();
      return ExportWriter::Check(command.check_export().directory());
    }
    case v1::Command::kExportEngine: {
      const auto engine = Formed(uid);
      if (!engine.ok()) return engine.status();
      if (absl::Status status = CheckNotMoving(**engine); !status.ok()) return status;
      return ExportEngine(engine->get(), command.export_engine(), result->mutable_export_engine());
    }
    case v1::Command::kStartGeneration: {
      const auto engine = FormedIdle(uid);
      if (!engine.ok()) return engine.status();
      return StartGeneration(engine->get(), command.start_generation());
    }
    case v1::Command::kDecodeToken: {
      const auto engine = FormedIdle(uid);
      if (!engine.ok()) return engine.status();
      return DecodeToken(engine->get(), result->mutable_decode_token());
    }
    case v1::Command::kEndGeneration: {
      const auto engine = FormedIdle(uid);
      if (!engine.ok()) return engine.status();
      return EndGeneration(engine->get());
    }
    case v1::Command::kSetSettings: {
      const auto engine = FormedIdle(uid);
      if (!engine.ok()) return engine.status();
      return SetSettings(engine->get(), command.set_settings());
    }
    case v1::Command::COMMAND_NOT_SET:
      break;
  }
  return absl::InvalidArgumentError("the command is empty or from a newer version");
}

absl::StatusOr<std::shared_ptr<HeldEngine>> Commands::Formed(uint64_t uid) const {
  std::shared_ptr<HeldEngine> engine = table_->Find(uid);
  if (engine == nullptr || engine->is_guest) {
    return absl::NotFoundError(absl::StrCat("rank ", identity_.rank, " holds no engine ", uid));
  }
  if (!engine->failure.ok()) {
    return MakeError(absl::StatusCode::kFailedPrecondition,
                     absl::StrCat("engine ", engine->spec.name, " failed on rank ", identity_.rank,
                                  " and can only be deleted: ", engine->failure.message()),
                     v1::ERROR_REASON_ENGINE_FAILED);
  }
  if (!engine->formed()) {
    return absl::FailedPreconditionError(
        absl::StrCat("engine ", engine->spec.name, " on rank ", identity_.rank, " is not formed"));
  }
  return engine;
}

absl::Status Commands::CheckNotMoving(const HeldEngine& engine) const {
  if (engine.pending == nullptr) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("engine ", engine.spec.name, " on rank ", identity_.rank,
                   ": a move is under way; allowed: its commit or roll-back"));
}

absl::StatusOr<std::shared_ptr<HeldEngine>> Commands::FormedTrainer(uint64_t uid) const {
  auto engine = Formed(uid);
  if (engine.ok() && (*engine)->trainer() == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat("engine ", (*engine)->spec.name, " is for inference; allowed: a trainer"));
  }
  return engine;
}

absl::StatusOr<std::shared_ptr<HeldEngine>> Commands::FormedInference(uint64_t uid) const {
  auto engine = Formed(uid);
  if (engine.ok() && (*engine)->inference == nullptr) {
    return absl::FailedPreconditionError(absl::StrCat(
        "engine ", (*engine)->spec.name, " is a trainer; allowed: an engine of role infer"));
  }
  return engine;
}

absl::StatusOr<std::shared_ptr<HeldEngine>> Commands::FormedIdle(uint64_t uid) const {
  auto engine = Formed(uid);
  if (!engine.ok()) return engine;
  if (absl::Status status = CheckNotMoving(**engine); !status.ok()) return status;
  return engine;
}

absl::StatusOr<std::unique_ptr<Group>> Commands::FormGroup(HeldEngine* engine,
                                                           absl::string_view name,
                                                           const std::vector<int>& ranks,
                                                           const v1::Rendezvous& rendezvous) const {
  GroupOptions options;
  options.engine = engine->spec.name;
  options.name = std::string(name);
  options.ranks = ranks;
  options.rank = identity_.rank;
  options.host = identity_.host;
  options.timeout = engine->spec.timeout;
  // Forming can't be interrupted, only abandoned: then its thread ends by itself, at the latest
  // when its time is over, and takes with it what it formed.
  struct Forming {
    absl::Mutex mutex;
    bool settled ABSL_GUARDED_BY(mutex) = false;
    absl::StatusOr<std::unique_ptr<Group>> outcome ABSL_GUARDED_BY(mutex) = nullptr;
  };
  const auto forming = std::make_shared<Forming>();
  const auto settle = [forming](absl::StatusOr<std::unique_ptr<Group>> outcome) {
    absl::MutexLock lock(&forming->mutex);
    if (forming->settled) return;
    forming->outcome = std::move(outcome);
    forming->settled = true;
  };
  std::thread([options, settle,
               address =
                   RendezvousAddress{rendezvous.host(), rendezvous.port(), rendezvous.prefix()}] {
    settle(Group::Form(options, address));
  }).detach();
  AbortHook hook(engine, settle);
  absl::MutexLock lock(&forming->mutex, absl::Condition(&forming->settled));
  return std::move(forming->outcome);
}

}  // namespace regroup
