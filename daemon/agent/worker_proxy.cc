#include "daemon/agent/worker_proxy.h"

#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "daemon/agent/path_guard.h"
#include "daemon/control/cancellation.h"
#include "proto/rpc_deadline.h"
#include "proto/rpc_status.h"

namespace regroup {
namespace {

template <typename Number>
bool ReadNumber(const grpc::CallbackServerContext& context, const char* key, Number* value) {
  const auto found = context.client_metadata().find(key);
  if (found == context.client_metadata().end()) return false;
  return absl::SimpleAtoi(absl::string_view(found->second.data(), found->second.size()), value);
}

// Passes on what the worker answered. The response lives until Finish.
template <typename T>
std::function<void(absl::StatusOr<T>)> PassOn(grpc::ServerUnaryReactor* reactor, T* response) {
  return [reactor, response](absl::StatusOr<T> answer) {
    const absl::Status status = answer.status();
    if (answer.ok()) *response = *std::move(answer);
    reactor->Finish(ToGrpc(status));
  };
}

}  // namespace

absl::StatusOr<WorkerProxy::Target> WorkerProxy::Find(
    const grpc::CallbackServerContext& context) const {
  const absl::StatusOr<absl::Duration> left = TimeLeft(context);
  if (!left.ok()) return left.status();
  WorkerRef ref;
  if (!ReadNumber(context, kRankKey, &ref.rank) ||
      !ReadNumber(context, kIncarnationKey, &ref.incarnation)) {
    return MakeError(absl::StatusCode::kInvalidArgument,
                     absl::StrCat("the call does not name its worker; allowed: metadata ", kRankKey,
                                  " and ", kIncarnationKey),
                     v1::ERROR_REASON_INVALID_FIELD);
  }
  const auto client = ranks_->Find(ref);
  if (!client.ok()) return client.status();
  return Target{*client, *left};
}

grpc::ServerUnaryReactor* WorkerProxy::GetState(grpc::CallbackServerContext* context,
                                                const v1::WorkerStateRequest*,
                                                v1::WorkerState* response) {
  const absl::StatusOr<Target> target = Find(*context);
  if (!target.ok()) return Reply(context, target.status());
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  target->client->GetState(target->left, PassOn(reactor, response));
  return reactor;
}

grpc::ServerUnaryReactor* WorkerProxy::OpenRendezvous(grpc::CallbackServerContext* context,
                                                      const v1::OpenRendezvousRequest* request,
                                                      v1::Rendezvous* response) {
  const absl::StatusOr<Target> target = Find(*context);
  if (!target.ok()) return Reply(context, target.status());
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  target->client->OpenRendezvous(*request, target->left, PassOn(reactor, response));
  return reactor;
}

grpc::ServerUnaryReactor* WorkerProxy::Abort(grpc::CallbackServerContext* context,
                                             const v1::AbortRequest* request,
                                             v1::AbortResponse* response) {
  const absl::StatusOr<Target> target = Find(*context);
  if (!target.ok()) return Reply(context, target.status());
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  target->client->Abort(*request, target->left, PassOn(reactor, response));
  return reactor;
}

grpc::ServerUnaryReactor* WorkerProxy::GetTrace(grpc::CallbackServerContext* context,
                                                const v1::WorkerTraceRequest* request,
                                                v1::EngineTrace* response) {
  const absl::StatusOr<Target> target = Find(*context);
  if (!target.ok()) return Reply(context, target.status());
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  target->client->GetTrace(request->engine_uid(), target->left, PassOn(reactor, response));
  return reactor;
}

absl::Status WorkerProxy::Begin() {
  absl::MutexLock lock(&mutex_);
  if (closed_) return StoppingError();
  ++running_;
  return absl::OkStatus();
}

void WorkerProxy::End() {
  absl::MutexLock lock(&mutex_);
  --running_;
}

bool WorkerProxy::Close(absl::Time deadline) {
  absl::MutexLock lock(&mutex_);
  closed_ = true;
  const auto idle = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return running_ == 0; };
  return mutex_.AwaitWithDeadline(absl::Condition(&idle), deadline);
}

void WorkerProxy::Run(const Target& target, v1::Command command, v1::CommandResult* response,
                      grpc::ServerUnaryReactor* reactor) {
  const auto pass_on = PassOn(reactor, response);
  target.client->Execute(std::move(command), target.left,
                         [this, pass_on](absl::StatusOr<v1::CommandResult> answer) {
                           End();  // before the answer: whoever has it may stop this daemon
                           pass_on(std::move(answer));
                         });
}

grpc::ServerUnaryReactor* WorkerProxy::Execute(grpc::CallbackServerContext* context,
                                               const v1::Command* request,
                                               v1::CommandResult* response) {
  const absl::StatusOr<Target> target = Find(*context);
  if (!target.ok()) return Reply(context, target.status());
  if (absl::Status status = Begin(); !status.ok()) return Reply(context, status);
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  if (!HasPaths(*request)) {
    Run(*target, *request, response, reactor);
    return reactor;
  }
  const absl::Status started =
      tasks_.Start([this, target = *target, command = *request, response, reactor]() mutable {
        const absl::Status guarded = GuardPaths(node_, roots_, target.client->ref().rank, &command);
        if (guarded.ok()) {
          Run(target, std::move(command), response, reactor);
          return;
        }
        End();
        reactor->Finish(ToGrpc(guarded));
      });
  if (!started.ok()) {
    End();
    reactor->Finish(ToGrpc(started));
  }
  return reactor;
}

}  // namespace regroup
