#include "daemon/control/fake_cluster.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "grpcpp/security/server_credentials.h"
#include "grpcpp/server_builder.h"
#include "gtest/gtest.h"
#include "proto/rpc_status.h"

namespace regroup {
namespace {

std::string CommandName(const v1::Command& command) {
  const auto* field = v1::Command::GetReflection()->GetOneofFieldDescriptor(
      command, v1::Command::descriptor()->FindOneofByName("command"));
  return field == nullptr ? "nothing" : std::string(field->message_type()->name());
}

constexpr int64_t kTokensPerRow = 3;  // then a row stops

}  // namespace

grpc::Status FakeWorker::GetState(grpc::ServerContext*, const v1::WorkerStateRequest*,
                                  v1::WorkerState* state) {
  absl::MutexLock lock(&mutex_);
  state->set_rank(ref_.rank);
  state->set_incarnation(ref_.incarnation);
  for (const auto& entry : held_) {
    v1::HeldEngine& engine = *state->add_engines();
    engine.set_uid(entry.first);
    engine.set_name(entry.second.name());
    engine.mutable_memory()->set_weights_bytes(1000);
    engine.mutable_memory()->set_peak_bytes(2000 + ref_.rank);
    v1::PartitionGroup& group = *engine.add_groups();
    group.set_name("dp");
    *group.mutable_ranks() = entry.second.layout().ranks();
  }
  return grpc::Status::OK;
}

grpc::Status FakeWorker::OpenRendezvous(grpc::ServerContext*,
                                        const v1::OpenRendezvousRequest* request,
                                        v1::Rendezvous* response) {
  cluster_->Note(absl::StrCat(ref_.rank, " OpenRendezvous"));
  if (cluster_->RendezvousHangs(ref_.rank)) return ToGrpc(AwaitDeath());
  response->set_host("127.0.0.1");
  response->set_port(1);
  response->set_prefix(absl::StrCat(request->engine_uid(), "/", request->attempt()));
  return grpc::Status::OK;
}

grpc::Status FakeWorker::Execute(grpc::ServerContext*, const v1::Command* command,
                                 v1::CommandResult* result) {
  cluster_->Note(absl::StrCat(ref_.rank, " ", CommandName(*command)));
  if (command->incarnation() != ref_.incarnation) {
    return ToGrpc(
        MakeError(absl::StatusCode::kAborted, "other incarnation", v1::ERROR_REASON_STALE));
  }
  {
    absl::MutexLock lock(&mutex_);
    if (++running_ > 1) cluster_->NoteOverlap();
  }
  const absl::Status status = cluster_->RunScript(*this, *command);
  absl::MutexLock lock(&mutex_);
  --running_;
  if (!status.ok()) return ToGrpc(status);
  if (command->has_train_step() && broken_.count(command->engine_uid()) > 0) {
    return ToGrpc(MakeError(absl::StatusCode::kUnavailable, "the group was aborted",
                            v1::ERROR_REASON_ENGINE_FAILED));
  }
  Apply(*command, result);
  cluster_->RunEdit(ref_.rank, result);
  return grpc::Status::OK;
}

void FakeWorker::Apply(const v1::Command& command, v1::CommandResult* result) {
  mutex_.AssertHeld();
  const uint64_t uid = command.engine_uid();
  switch (command.command_case()) {
    case v1::Command::kPrepareEngine:
      held_[uid] = command.prepare_engine().spec();
      aborted_.erase(uid);
      result->mutable_prepare_engine()->set_parameters(10);
      result->mutable_prepare_engine()->set_units(2);
      result->mutable_prepare_engine()->set_dtype(v1::DTYPE_FP32);
      result->mutable_prepare_engine()->set_fingerprint(held_[uid].model());
      break;
    case v1::Command::kFormEngine: {
      v1::PartitionGroup& group = *result->mutable_form_engine()->add_groups();
      group.set_name("dp");
      *group.mutable_ranks() = held_[uid].layout().ranks();
      break;
    }
    case v1::Command::kDropEngine:
      held_.erase(uid);
      moves_.erase(uid);
      broken_.erase(uid);
      break;
    case v1::Command::kTrainStep: {
      v1::TrainStepResult& step = *result->mutable_train_step();
      step.mutable_record()->set_step(++steps_[uid]);
      step.mutable_record()->set_data_position(steps_[uid]);
      step.mutable_record()->set_loss(1.0 / static_cast<double>(steps_[uid]));
      step.set_weights_version(1 + steps_[uid]);
      break;
    }
    case v1::Command::kPrepareMove:
      moves_[uid] = command.prepare_move();
      break;
    case v1::Command::kRunMove:
      result->mutable_run_move()->set_bytes_received(100);
      result->mutable_run_move()->set_peak_bytes(5000 + ref_.rank);
      break;
    case v1::Command::kCommitMove: {
      const v1::PrepareMove move = moves_[uid];
      moves_.erase(uid);
      if (move.kind() == v1::PrepareMove::KIND_SYNC) break;
      const auto& ranks = move.destination_layout().ranks();
      held_.erase(uid);
      if (std::find(ranks.begin(), ranks.end(), ref_.rank) == ranks.end()) break;
      held_[uid] = move.source();
      *held_[uid].mutable_layout() = move.destination_layout();
      steps_[uid] = move.step();
      break;
    }
    case v1::Command::kRollBackMove:
      moves_.erase(uid);
      aborted_.erase(uid);
      break;
    case v1::Command::kExportEngine:
      result->mutable_export_engine()->set_bytes(7);
      break;
    case v1::Command::kStartGeneration:
      rows_left_.clear();
      for (const v1::Row& row : command.start_generation().rows()) {
        rows_left_[row.row()] = std::min(kTokensPerRow, command.start_generation().max_tokens());
      }
      break;
    case v1::Command::kDecodeToken: {
      v1::DecodeTokenResult& decoded = *result->mutable_decode_token();
      for (auto& entry : rows_left_) {
        if (entry.second == 0) continue;
        v1::RowToken& token = *decoded.add_tokens();
        token.set_row(entry.first);
        token.set_token(static_cast<int>(100 * entry.first + entry.second));
        if (--entry.second == 0) token.set_finish_reason(v1::FINISH_REASON_STOP);
        decoded.set_unfinished(decoded.unfinished() + (entry.second > 0 ? 1 : 0));
      }
      decoded.set_weights_version(4);
      break;
    }
    case v1::Command::kEndGeneration:
      rows_left_.clear();
      break;
    default:
      break;
  }
}

grpc::Status FakeWorker::Abort(grpc::ServerContext*, const v1::AbortRequest* request,
                               v1::AbortResponse*) {
  cluster_->Note(absl::StrCat(ref_.rank, request->move_only() ? " AbortMove" : " Abort"));
  absl::MutexLock lock(&mutex_);
  aborted_[request->engine_uid()] =
      absl::StrCat(request->move_only() ? "move " : "", "aborted: ", request->reason());
  if (!request->move_only()) broken_.insert(request->engine_uid());
  return grpc::Status::OK;
}

grpc::Status FakeWorker::GetTrace(grpc::ServerContext*, const v1::WorkerTraceRequest*,
                                  v1::EngineTrace* trace) {
  trace->add_passes()->set_kind("train");
  return grpc::Status::OK;
}

absl::Status FakeWorker::AwaitAbort(uint64_t uid) {
  absl::MutexLock lock(&mutex_);
  const auto over = [this, uid]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return dead_ || aborted_.count(uid) > 0;
  };
  if (!mutex_.AwaitWithTimeout(absl::Condition(&over), kPatience)) {
    return absl::InternalError("nobody aborted");
  }
  return MakeError(absl::StatusCode::kCancelled, aborted_[uid], v1::ERROR_REASON_CANCELLED);
}

absl::Status FakeWorker::AwaitDeath() {
  absl::MutexLock lock(&mutex_);
  return mutex_.AwaitWithTimeout(absl::Condition(&dead_), kPatience)
             ? absl::UnavailableError("dead")
             : absl::InternalError("nobody killed");
}

void FakeWorker::Die() {
  absl::MutexLock lock(&mutex_);
  dead_ = true;
  held_.clear();
}

std::set<uint64_t> FakeWorker::held() {
  absl::MutexLock lock(&mutex_);
  std::set<uint64_t> uids;
  for (const auto& entry : held_) uids.insert(entry.first);
  return uids;
}

FakeCluster::FakeCluster(int ranks, const std::function<void(OperationTiming&)>& change)
    : ranks_(ranks), folder_(*PrivateDir::Make()), table_(ranks), slots_(ranks) {
  data_file_ = absl::StrCat(folder_.path(), "/text.u16.bin");
  std::ofstream(data_file_) << "text";
  ControlOptions options;
  options.node = "a";
  options.limits.ranks = ranks;
  options.limits.roots = *DataRoots::Make({folder_.path()});
  options.timing.ready_wait = absl::Seconds(5);
  options.timing.delete_cancel = absl::Milliseconds(100);
  options.timing.delete_abort = absl::Milliseconds(100);
  options.timing.generate_progress = absl::ZeroDuration();
  options.timing.commands.abort_grace = absl::Milliseconds(100);
  if (change) change(options.timing);
  control_ = std::make_unique<Control>(options, &table_,
                                       [this](const WorkerRef& ref, const std::string& reason) {
                                         Note(absl::StrCat(ref.rank, " Kill"));
                                         KillLater(ref.rank);
                                       });
  for (int rank = 0; rank < ranks; ++rank) Restart(rank);
}

FakeCluster::~FakeCluster() {
  // Workers go first, so that what still runs ends.
  for (int rank = 0; rank < ranks_; ++rank) Kill(rank);
  control_ = nullptr;
  std::vector<std::thread> killers;
  {
    absl::MutexLock lock(&mutex_);
    killers.swap(killers_);
  }
  for (std::thread& killer : killers) killer.join();
}

void FakeCluster::SetScript(Script script) {
  absl::MutexLock lock(&mutex_);
  script_ = std::move(script);
}

void FakeCluster::SetEdit(Edit edit) {
  absl::MutexLock lock(&mutex_);
  edit_ = std::move(edit);
}

void FakeCluster::RunEdit(int rank, v1::CommandResult* result) {
  absl::MutexLock lock(&mutex_);
  if (edit_) edit_(rank, result);
}

void FakeCluster::HangRendezvousOn(int rank) {
  absl::MutexLock lock(&mutex_);
  hang_rendezvous_.insert(rank);
}

bool FakeCluster::RendezvousHangs(int rank) {
  absl::MutexLock lock(&mutex_);
  return hang_rendezvous_.count(rank) > 0;
}

absl::Status FakeCluster::RunScript(FakeWorker& worker, const v1::Command& command) {
  Script script;
  {
    absl::MutexLock lock(&mutex_);
    script = script_;
  }
  return script ? script(worker, command) : absl::OkStatus();
}

void FakeCluster::Restart(int rank) {
  std::shared_ptr<WorkerClient> client;
  {
    absl::MutexLock lock(&slots_mutex_);
    Slot& slot = slots_[rank];
    ++slot.starts;
    const WorkerRef ref{rank, static_cast<uint64_t>(1000 * slot.starts + rank)};
    const std::string socket = absl::StrCat(folder_.path(), "/", rank, ".", slot.starts);
    slot.worker = std::make_unique<FakeWorker>(this, ref);
    grpc::ServerBuilder builder;
    builder.AddListeningPort(absl::StrCat("unix:", socket), grpc::InsecureServerCredentials());
    builder.RegisterService(slot.worker.get());
    slot.server = builder.BuildAndStart();
    client = WorkerClient::Make(ref, socket);
  }
  table_.Started(client, 1000 + rank);
  table_.Ready(client->ref());
}

void FakeCluster::Kill(int rank) {
  Slot dead;
  {
    absl::MutexLock lock(&slots_mutex_);
    if (slots_[rank].worker == nullptr) return;
    dead.worker = std::move(slots_[rank].worker);
    dead.server = std::move(slots_[rank].server);
  }
  const RankInfo info = table_.List()[rank];
  const std::string how =
      absl::StrCat("rank ", rank, " (pid ", info.pid, ") was killed by SIGKILL");
  table_.Lost({rank, info.incarnation}, how, how);
  dead.worker->Die();
  dead.server->Shutdown(std::chrono::system_clock::now());
}

void FakeCluster::KillLater(int rank) {
  absl::MutexLock lock(&mutex_);
  killers_.emplace_back([this, rank] { Kill(rank); });
}

std::set<uint64_t> FakeCluster::Held(int rank) {
  absl::MutexLock lock(&slots_mutex_);
  return slots_[rank].worker == nullptr ? std::set<uint64_t>() : slots_[rank].worker->held();
}

void FakeCluster::Note(const std::string& entry) {
  absl::MutexLock lock(&mutex_);
  log_.push_back(entry);
}

void FakeCluster::NoteOverlap() {
  absl::MutexLock lock(&mutex_);
  overlapped_ = true;
}

bool FakeCluster::overlapped() {
  absl::MutexLock lock(&mutex_);
  return overlapped_;
}

std::vector<std::string> FakeCluster::Log() {
  absl::MutexLock lock(&mutex_);
  return log_;
}

int FakeCluster::Count(const std::string& entry) {
  absl::MutexLock lock(&mutex_);
  return static_cast<int>(std::count(log_.begin(), log_.end(), entry));
}

bool FakeCluster::AwaitCount(const std::string& entry, int count) {
  absl::MutexLock lock(&mutex_);
  const auto enough = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return std::count(log_.begin(), log_.end(), entry) >= count;
  };
  return mutex_.AwaitWithTimeout(absl::Condition(&enough), kPatience);
}

std::string FakeCluster::NewRequestId() {
  static std::atomic<int> last{0};
  return absl::StrCat("request-", ++last);
}

v1::CreateEngineRequest FakeCluster::CreateRequest(const std::string& name,
                                                   const std::vector<int>& ranks, v1::Role role) {
  v1::CreateEngineRequest request;
  request.set_request_id(NewRequestId());
  v1::EngineSpec& spec = *request.mutable_spec();
  spec.set_name(name);
  spec.set_model("mlp:in=8,hidden=16,layers=2,out=4");
  spec.set_role(role);
  for (int rank : ranks) spec.mutable_layout()->add_ranks(rank);
  if (role == v1::ROLE_TRAIN) {
    spec.mutable_optimizer()->set_name("sgd");
    spec.mutable_optimizer()->set_learning_rate(0.1);
  }
  return request;
}

v1::TrainRequest FakeCluster::TrainRequest(const std::string& name, int64_t steps) {
  v1::TrainRequest request;
  request.set_request_id(NewRequestId());
  request.set_name(name);
  request.set_data(data_file_);
  request.set_steps(steps);
  request.set_batch(4);
  return request;
}

v1::Operation FakeCluster::Finish(const absl::StatusOr<v1::Operation>& accepted) {
  v1::Operation operation;
  if (!accepted.ok()) {
    ADD_FAILURE() << "refused: " << accepted.status();
    return operation;
  }
  operation = *accepted;
  const absl::Time deadline = absl::Now() + kPatience;
  while (!operation.done()) {
    struct Change {
      absl::Mutex mutex;
      bool seen ABSL_GUARDED_BY(mutex) = false;
    };
    auto change = std::make_shared<Change>();
    int64_t watch = 0;
    const auto next = control_->operations().Watch(
        operation.id(), operation.version(),
        [change](const v1::Operation&) {
          absl::MutexLock lock(&change->mutex);
          change->seen = true;
        },
        &watch);
    if (!next.ok()) {
      ADD_FAILURE() << next.status();
      return operation;
    }
    if (next->has_value()) {
      operation = **next;
      continue;
    }
    absl::MutexLock lock(&change->mutex);
    if (!change->mutex.AwaitWithDeadline(absl::Condition(&change->seen), deadline)) {
      ADD_FAILURE() << "does not end: " << operation.ShortDebugString();
      return operation;
    }
  }
  return operation;
}

void FakeCluster::MustCreate(const std::string& name, const std::vector<int>& ranks,
                             v1::Role role) {
  const v1::Operation operation = Finish(control_->CreateEngine(CreateRequest(name, ranks, role)));
  EXPECT_EQ(operation.error(), "");
  EXPECT_EQ(Describe(name).state(), v1::ENGINE_STATE_READY);
}

v1::Engine FakeCluster::Describe(const std::string& name) {
  const absl::StatusOr<v1::Engine> engine = control_->DescribeEngine(name);
  return engine.ok() ? *engine : v1::Engine();
}

}  // namespace regroup
