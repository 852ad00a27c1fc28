#include "daemon/control/node_watcher.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/node/daemon_channel.h"
#include "daemon/node/steady_clock.h"
#include "proto/rpc_status.h"
#include "spdlog/spdlog.h"

namespace regroup {
namespace {

constexpr absl::Duration kLongestAsk = absl::Seconds(1);
constexpr absl::Duration kShortestAsk = absl::Milliseconds(50);

}  // namespace

void MirrorRank(const v1::RankReport& report, RankTable* ranks,
                const std::function<std::shared_ptr<WorkerClient>(const WorkerRef&)>& connect,
                const std::function<void(const WorkerRef&, const v1::WorkerState&)>& attached) {
  absl::optional<WorkerRef> serving = ranks->Serving(report.rank());
  const bool runs = report.state() != v1::RANK_STATE_LOST && report.incarnation() != 0;
  const WorkerRef now{report.rank(), report.incarnation()};
  if (serving.has_value() && (!runs || !(*serving == now))) {
    const std::string how = report.how().empty()
                                ? absl::StrCat("rank ", report.rank(), " has another process")
                                : report.how();
    ranks->Lost(*serving, how, report.error().empty() ? how : report.error());
    serving = absl::nullopt;
  }
  if (!runs) return;
  const bool is_new = !serving.has_value();
  if (is_new) ranks->Started(connect(now), report.pid());
  if (!report.has_worker()) return;
  ranks->Answered(now, report.worker());
  if (report.state() != v1::RANK_STATE_READY || ranks->IsReady(now)) return;
  attached(now, report.worker());
  ranks->Ready(now);
}

NodeWatcher::NodeWatcher(const NodeRecord& node, RankTable* ranks,
                         const NodeWatcherOptions& options, Hooks hooks)
    : node_(node),
      ranks_(ranks),
      options_(options),
      hooks_(std::move(hooks)),
      channel_(ConnectToDaemon(node.address)),
      stub_(v1::Agent::NewStub(channel_)),
      thread_([this] { Loop(); }) {}

NodeWatcher::~NodeWatcher() {
  {
    absl::MutexLock lock(&mutex_);
    stopped_ = true;
  }
  thread_.join();
}

absl::StatusOr<v1::NodeReport> NodeWatcher::Ask(absl::Duration timeout) {
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + timeout));
  v1::GetNodeRequest request;
  request.set_incarnation(node_.incarnation);
  v1::NodeReport report;
  const absl::Status status = FromGrpc(stub_->GetNode(&context, request, &report));
  if (!status.ok()) return status;
  return report;
}

void NodeWatcher::Loop() {
  Hearing hearing(options_.silence, SteadyNow());
  absl::Time until_silent = SteadyNow() + options_.silence;
  while (true) {
    int64_t question = 0;
    bool lost = false;
    {
      absl::MutexLock lock(&mutex_);
      if (stopped_) return;
      question = ++asked_;
      lost = lost_;
    }
    const absl::Duration timeout =
        lost ? kLongestAsk
             : std::min(kLongestAsk, std::max(kShortestAsk, until_silent - SteadyNow()));
    const absl::StatusOr<v1::NodeReport> report = Ask(timeout);
    if (report.ok()) {
      hearing.Heard(SteadyNow());
      until_silent = SteadyNow() + options_.silence;
      Take(*report);
      absl::MutexLock lock(&mutex_);
      answered_ = question;
    } else if (absl::IsAborted(report.status())) {
      Lose("its daemon was replaced by another one");
    } else if (hearing.Silent(SteadyNow())) {
      Lose(absl::StrCat("nothing was heard from it for ", absl::FormatDuration(hearing.limit())));
    }
    absl::MutexLock lock(&mutex_);
    mutex_.AwaitWithTimeout(absl::Condition(&stopped_), options_.interval);
  }
}

void NodeWatcher::Take(const v1::NodeReport& report) {
  for (const v1::RankReport& rank : report.ranks()) {
    if (rank.rank() < node_.first_rank || rank.rank() >= node_.first_rank + node_.ranks) continue;
    MirrorRank(
        rank, ranks_,
        [this](const WorkerRef& ref) {
          return WorkerClient::MakeRemote(ref, channel_, options_.silence + absl::Seconds(2));
        },
        hooks_.attached);
  }
  {
    absl::MutexLock lock(&mutex_);
    if (!lost_) return;
    lost_ = false;
  }
  spdlog::info("node {}: it answers again", node_.name);
  hooks_.state(v1::NODE_STATE_READY);
}

void NodeWatcher::Lose(const std::string& why) {
  {
    absl::MutexLock lock(&mutex_);
    if (lost_) return;
  }
  spdlog::warn("node {} is lost: {}", node_.name, why);
  hooks_.state(v1::NODE_STATE_LOST);
  for (int rank = node_.first_rank; rank < node_.first_rank + node_.ranks; ++rank) {
    const absl::optional<WorkerRef> serving = ranks_->Serving(rank);
    if (!serving.has_value()) continue;
    const std::string how =
        absl::StrCat("rank ", rank, " is lost with node ", node_.name, ": ", why);
    ranks_->Lost(*serving, how, how);
  }
  absl::MutexLock lock(&mutex_);
  lost_ = true;
}

bool NodeWatcher::AwaitVerdict() {
  absl::MutexLock lock(&mutex_);
  const int64_t asked = asked_;
  const auto decided = [&]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
    return stopped_ || lost_ || answered_ > asked;
  };
  mutex_.Await(absl::Condition(&decided));
  return !lost_ && !stopped_;
}

void NodeWatcher::Kill(const WorkerRef& ref, const std::string& reason) {
  struct Call {
    grpc::ClientContext context;
    v1::KillWorkerRequest request;
    v1::KillWorkerResponse response;
  };
  auto call = std::make_shared<Call>();
  call->context.set_deadline(absl::ToChronoTime(absl::Now() + options_.kill));
  call->context.set_wait_for_ready(true);
  call->request.set_rank(ref.rank);
  call->request.set_incarnation(ref.incarnation);
  call->request.set_reason(reason);
  stub_->async()->KillWorker(&call->context, &call->request, &call->response,
                             [call, stub = stub_, name = node_.name](const grpc::Status& status) {
                               if (!status.ok()) {
                                 spdlog::warn("node {}: rank {} could not be killed: {}", name,
                                              call->request.rank(), status.error_message());
                               }
                             });
}

}  // namespace regroup
