#include "daemon/node/worker_client.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/security/credentials.h"
#include "proto/rpc_status.h"

namespace regroup {
namespace {

constexpr int kMaxMessageBytes = 256 << 20;

std::shared_ptr<grpc::Channel> Connect(const std::string& socket_path) {
  grpc::ChannelArguments args;
  args.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 20);
  // This one is the time that a connection may take: a worker may be slow while others compute.
  args.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 5000);
  args.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 200);
  args.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  args.SetMaxReceiveMessageSize(kMaxMessageBytes);
  args.SetMaxSendMessageSize(kMaxMessageBytes);
  return grpc::CreateCustomChannel(absl::StrCat("unix:", socket_path),
                                   grpc::InsecureChannelCredentials(), args);
}

// The threads that run callbacks end with the last channel that had a call. A channel may go on one
// of these very threads, which gRPC 1.51 does not survive. So one channel, to nowhere, is kept for
// good.
void KeepCallbackThreads() {
  struct Keeper {
    std::unique_ptr<v1::Worker::Stub> stub = v1::Worker::NewStub(Connect("/dev/null"));
    grpc::ClientContext context;
    v1::WorkerStateRequest request;
    v1::WorkerState response;
  };
  static Keeper* const keeper = [] {
    auto* made = new Keeper;
    made->stub->async()->GetState(&made->context, &made->request, &made->response,
                                  [](const grpc::Status&) {});
    return made;
  }();
  (void)keeper;
}

// What gRPC itself says of a broken connection; a worker's own errors carry a detail.
bool IsBrokenConnection(const absl::Status& status) {
  return (absl::IsUnavailable(status) || absl::IsUnknown(status)) && !DetailOf(status).has_value();
}

}  // namespace

absl::Status RankLostError(int rank, const std::string& how) {
  v1::ErrorDetail detail;
  detail.set_reason(v1::ERROR_REASON_RANK_LOST);
  detail.add_ranks(rank);
  return MakeError(absl::StatusCode::kUnavailable, how, detail);
}

std::shared_ptr<WorkerClient> WorkerClient::Make(WorkerRef ref, const std::string& socket_path) {
  KeepCallbackThreads();
  return std::shared_ptr<WorkerClient>(
      new WorkerClient(ref, Connect(socket_path), /*remote=*/false, kVerdictWait));
}

std::shared_ptr<WorkerClient> WorkerClient::MakeRemote(
    WorkerRef ref, const std::shared_ptr<grpc::Channel>& channel, absl::Duration verdict_wait) {
  KeepCallbackThreads();
  return std::shared_ptr<WorkerClient>(
      new WorkerClient(ref, channel, /*remote=*/true, verdict_wait));
}

WorkerClient::WorkerClient(WorkerRef ref, const std::shared_ptr<grpc::Channel>& channel,
                           bool remote, absl::Duration verdict_wait)
    : ref_(ref),
      stub_(v1::Worker::NewStub(channel)),
      remote_(remote),
      verdict_wait_(verdict_wait) {}

bool WorkerClient::Begin(std::shared_ptr<grpc::ClientContext> context, absl::Status* lost) {
  absl::MutexLock lock(&mutex_);
  if (lost_) {
    *lost = RankLostError(ref_.rank, how_);
    return false;
  }
  running_.insert(std::move(context));
  return true;
}

void WorkerClient::End(const std::shared_ptr<grpc::ClientContext>& context, absl::Status status,
                       std::function<void(absl::Status)> finish) {
  {
    absl::MutexLock lock(&mutex_);
    running_.erase(context);
    if (lost_ && !status.ok()) {
      status = RankLostError(ref_.rank, how_);
    } else if (IsBrokenConnection(status)) {
      undecided_.push_back({absl::Now(), std::move(finish), std::move(status)});
      return;
    }
  }
  finish(std::move(status));
}

template <typename Request, typename Response, typename Start>
void WorkerClient::Call(Request request, absl::Duration timeout, bool wait_for_ready, Start start,
                        Done<Response> done) {
  struct State {
    grpc::ClientContext context;
    Request request;
    Response response;
  };
  auto state = std::make_shared<State>();
  state->request = std::move(request);
  state->context.set_deadline(absl::ToChronoTime(absl::Now() + timeout));
  state->context.set_wait_for_ready(wait_for_ready);
  if (remote_) {
    state->context.AddMetadata(kRankKey, absl::StrCat(ref_.rank));
    state->context.AddMetadata(kIncarnationKey, absl::StrCat(ref_.incarnation));
  }
  const std::shared_ptr<grpc::ClientContext> context(state, &state->context);
  absl::Status lost;
  if (!Begin(context, &lost)) {
    done(std::move(lost));
    return;
  }
  start(&state->context, &state->request, &state->response,
        [self = shared_from_this(), state, context,
         done = std::move(done)](const grpc::Status& status) {
          self->End(context, FromGrpc(status), [state, done](absl::Status outcome) {
            if (outcome.ok()) {
              done(std::move(state->response));
            } else {
              done(std::move(outcome));
            }
          });
        });
}

void WorkerClient::Execute(v1::Command command, absl::Duration timeout,
                           Done<v1::CommandResult> done) {
  command.set_incarnation(ref_.incarnation);
  Call<v1::Command, v1::CommandResult>(
      std::move(command), timeout, /*wait_for_ready=*/false,
      [this](auto... args) { stub_->async()->Execute(std::move(args)...); }, std::move(done));
}

void WorkerClient::OpenRendezvous(v1::OpenRendezvousRequest request, absl::Duration timeout,
                                  Done<v1::Rendezvous> done) {
  request.set_incarnation(ref_.incarnation);
  Call<v1::OpenRendezvousRequest, v1::Rendezvous>(
      std::move(request), timeout, /*wait_for_ready=*/false,
      [this](auto... args) { stub_->async()->OpenRendezvous(std::move(args)...); },
      std::move(done));
}

void WorkerClient::Abort(v1::AbortRequest request, absl::Duration timeout,
                         Done<v1::AbortResponse> done) {
  request.set_incarnation(ref_.incarnation);
  Call<v1::AbortRequest, v1::AbortResponse>(
      std::move(request), timeout, /*wait_for_ready=*/false,
      [this](auto... args) { stub_->async()->Abort(std::move(args)...); }, std::move(done));
}

void WorkerClient::GetTrace(uint64_t engine_uid, absl::Duration timeout,
                            Done<v1::EngineTrace> done) {
  v1::WorkerTraceRequest request;
  request.set_engine_uid(engine_uid);
  Call<v1::WorkerTraceRequest, v1::EngineTrace>(
      std::move(request), timeout, /*wait_for_ready=*/false,
      [this](auto... args) { stub_->async()->GetTrace(std::move(args)...); }, std::move(done));
}

void WorkerClient::GetState(absl::Duration timeout, Done<v1::WorkerState> done) {
  Call<v1::WorkerStateRequest, v1::WorkerState>(
      v1::WorkerStateRequest(), timeout, /*wait_for_ready=*/true,
      [this](auto... args) { stub_->async()->GetState(std::move(args)...); }, std::move(done));
}

void WorkerClient::Lost(const std::string& how) {
  std::vector<Undecided> undecided;
  absl::flat_hash_set<std::shared_ptr<grpc::ClientContext>> running;
  {
    absl::MutexLock lock(&mutex_);
    if (lost_) return;
    lost_ = true;
    how_ = how;
    undecided.swap(undecided_);
    running = running_;
  }
  for (const auto& context : running) context->TryCancel();
  for (Undecided& call : undecided) call.finish(RankLostError(ref_.rank, how));
}

void WorkerClient::EndUndecided(absl::Time now) {
  std::vector<Undecided> late;
  {
    absl::MutexLock lock(&mutex_);
    std::vector<Undecided> early;
    for (Undecided& call : undecided_) {
      (call.since + verdict_wait_ <= now ? late : early).push_back(std::move(call));
    }
    undecided_.swap(early);
  }
  for (Undecided& call : late) call.finish(std::move(call.broken));
}

}  // namespace regroup
