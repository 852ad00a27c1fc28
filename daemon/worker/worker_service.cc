#include "daemon/worker/worker_service.h"

#include <unistd.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/worker/memory.h"
#include "daemon/worker/proto_convert.h"
#include "engine/group/comm_status.h"
#include "engine/group/group.h"
#include "grpcpp/support/server_callback.h"
#include "proto/rpc_deadline.h"
#include "proto/rpc_status.h"

namespace regroup {
WorkerService::WorkerService(WorkerIdentity identity, EngineTable* table, Commands* commands,
                             Executor* executor)
    : identity_(std::move(identity)), table_(table), commands_(commands), executor_(executor) {}

absl::Status WorkerService::CheckIncarnation(uint64_t incarnation) const {
  if (incarnation == identity_.incarnation) return absl::OkStatus();
  return MakeError(absl::StatusCode::kAborted,
                   absl::StrCat("rank ", identity_.rank, " runs as incarnation ",
                                identity_.incarnation, ", the call is for ", incarnation),
                   v1::ERROR_REASON_STALE);
}

grpc::ServerUnaryReactor* WorkerService::GetState(grpc::CallbackServerContext* context,
                                                  const v1::WorkerStateRequest*,
                                                  v1::WorkerState* response) {
  const absl::Status status = TimeLeft(*context).status();
  if (status.ok()) FillState(response);
  return Reply(context, status);
}

void WorkerService::FillState(v1::WorkerState* state) const {
  state->set_rank(identity_.rank);
  state->set_incarnation(identity_.incarnation);
  state->set_pid(getpid());
  state->set_rss_bytes(ResidentBytes());
  state->set_commands_done(commands_done_);
  state->set_collectives_issued(CollectivesIssued());
  for (const std::shared_ptr<HeldEngine>& engine : table_->List()) {
    v1::HeldEngine* held = state->add_engines();
    held->set_uid(engine->spec.uid);
    held->set_name(engine->spec.name);
    held->set_bytes_done(engine->bytes_done);
    held->set_bytes_total(engine->bytes_total);
    const MemoryUse memory = engine->memory();
    // In this order: a command that ends in between is still counted, not already forgotten.
    int commands = 0;
    {
      absl::MutexLock lock(&mutex_);
      const auto unended = unended_.find(engine->spec.uid);
      if (unended != unended_.end()) commands = unended->second;
    }
    *held->mutable_standing() = engine->standing();
    held->mutable_standing()->set_commands(commands);
    held->mutable_memory()->set_rank(identity_.rank);
    held->mutable_memory()->set_weights_bytes(memory.weights_bytes);
    held->mutable_memory()->set_optimizer_bytes(memory.optimizer_bytes);
    held->mutable_memory()->set_buffers_bytes(memory.buffers_bytes);
    held->mutable_memory()->set_peak_bytes(memory.peak_bytes);
    if (!engine->is_guest) {
      *held->add_groups() = GroupToProto(engine->table(), engine->spec.layout);
    }
  }
}

grpc::ServerUnaryReactor* WorkerService::OpenRendezvous(grpc::CallbackServerContext* context,
                                                        const v1::OpenRendezvousRequest* request,
                                                        v1::Rendezvous* response) {
  absl::Status status = TimeLeft(*context).status();
  if (status.ok()) status = CheckIncarnation(request->incarnation());
  if (status.ok()) status = Open(*request, response);
  return Reply(context, WithErrorDetail(status, "", "open_rendezvous"));
}

absl::Status WorkerService::Open(const v1::OpenRendezvousRequest& request,
                                 v1::Rendezvous* response) {
  const std::string host = request.host().empty() ? identity_.host : request.host();
  absl::StatusOr<std::unique_ptr<RendezvousServer>> server = RendezvousServer::Start(host);
  if (!server.ok()) return server.status();
  response->set_host(host);
  response->set_port((*server)->port());
  response->set_prefix(absl::StrCat(request.engine_uid(), "/", request.attempt()));
  table_->SetRendezvous(request.engine_uid(), *std::move(server));
  return absl::OkStatus();
}

grpc::ServerUnaryReactor* WorkerService::Execute(grpc::CallbackServerContext* context,
                                                 const v1::Command* request,
                                                 v1::CommandResult* response) {
  absl::Status status = TimeLeft(*context).status();
  if (status.ok()) status = CheckIncarnation(request->incarnation());
  if (!status.ok()) return Reply(context, status);
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  CountCommand(request->engine_uid(), 1);
  executor_->Post([this, context, request, response, reactor] {
    // Nobody waits for a command whose caller gave up before it began; one that began runs to its
    // end.
    if (context->IsCancelled()) {
      CountCommand(request->engine_uid(), -1);
      reactor->Finish(ToGrpc(MakeError(absl::StatusCode::kCancelled,
                                       "the caller gave up before the command began",
                                       v1::ERROR_REASON_CANCELLED)));
      return;
    }
    absl::StatusOr<v1::CommandResult> result = commands_->Run(*request);
    const absl::Status status = result.status();
    if (status.ok()) *response = *std::move(result);
    ++commands_done_;
    CountCommand(request->engine_uid(), -1);
    reactor->Finish(ToGrpc(status));
  });
  return reactor;
}

void WorkerService::CountCommand(uint64_t uid, int change) {
  absl::MutexLock lock(&mutex_);
  int& count = unended_[uid];
  count += change;
  if (count == 0) unended_.erase(uid);
}

grpc::ServerUnaryReactor* WorkerService::Abort(grpc::CallbackServerContext* context,
                                               const v1::AbortRequest* request,
                                               v1::AbortResponse*) {
  absl::Status status = TimeLeft(*context).status();
  if (status.ok()) status = CheckIncarnation(request->incarnation());
  if (!status.ok()) return Reply(context, status);
  if (const auto engine = table_->Find(request->engine_uid()); engine != nullptr) {
    engine->Abort(WithReason(absl::CancelledError(request->reason()), "CANCELLED"),
                  request->move_only());
  }
  // Without their store, groups that are still forming end at once, on all of their members.
  table_->SetRendezvous(request->engine_uid(), nullptr);
  return Reply(context, absl::OkStatus());
}

grpc::ServerUnaryReactor* WorkerService::GetTrace(grpc::CallbackServerContext* context,
                                                  const v1::WorkerTraceRequest* request,
                                                  v1::EngineTrace* response) {
  absl::Status status = TimeLeft(*context).status();
  if (status.ok()) status = FillTrace(request->engine_uid(), response);
  return Reply(context, status);
}

absl::Status WorkerService::FillTrace(uint64_t uid, v1::EngineTrace* trace) const {
  const std::shared_ptr<HeldEngine> engine = table_->Find(uid);
  if (engine == nullptr || engine->is_guest) {
    return absl::NotFoundError(absl::StrCat("rank ", identity_.rank, " holds no engine ", uid));
  }
  trace->set_engine(engine->spec.name);
  trace->set_rank(identity_.rank);
  *trace->add_groups() = GroupToProto(engine->table(), engine->spec.layout);
  const std::shared_ptr<Trainer> trainer = engine->trainer();
  if (trainer == nullptr) return absl::OkStatus();
  for (const TraceSnapshot& snapshot : trainer->traces()) {
    *trace->add_passes() = PassToProto(engine->table(), snapshot);
  }
  return absl::OkStatus();
}

}  // namespace regroup
