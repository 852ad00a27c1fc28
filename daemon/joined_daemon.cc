// A daemon whose ranks are part of another one's cluster.
#include <poll.h>
#include <sys/random.h>

#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "daemon/agent/joiner.h"
#include "daemon/agent/node_service.h"
#include "daemon/agent/worker_proxy.h"
#include "daemon/control/control_server.h"
#include "daemon/daemon_parts.h"
#include "daemon/node/daemon_channel.h"
#include "daemon/node/rank_table.h"
#include "spdlog/spdlog.h"

namespace regroup {
namespace {

// How often a daemon that was told to stop says that it still waits for a command, whose waits have
// time limits of their own.
constexpr absl::Duration kStopNotice = absl::Seconds(10);

// Never 0, which means "none".
uint64_t RandomIncarnation() {
  uint64_t value = 0;
  while (value == 0) {
    if (getrandom(&value, sizeof(value), 0) != sizeof(value)) value = 0;
  }
  return value;
}

bool Arrived(int signal_fd) {
  pollfd fd{signal_fd, POLLIN, 0};
  return poll(&fd, 1, 0) > 0;
}

// Kills go to the supervisor, once there is one.
class KillTarget {
 public:
  void Set(Supervisor* supervisor) {
    absl::MutexLock lock(&mutex_);
    supervisor_ = supervisor;
  }
  void Kill(const WorkerRef& ref, const std::string& reason) {
    absl::MutexLock lock(&mutex_);
    if (supervisor_ != nullptr) supervisor_->Kill(ref, reason);
  }

 private:
  absl::Mutex mutex_;
  Supervisor* supervisor_ ABSL_GUARDED_BY(mutex_) = nullptr;
};

}  // namespace

absl::Status RunJoined(const DaemonFlags& flags, DaemonParts parts) {
  NodeIdentity identity;
  identity.name = flags.node;
  identity.incarnation = RandomIncarnation();
  identity.primary = JoinHostPort(flags.join_host, flags.join_port);

  RankTable ranks(0);
  KillTarget kill_target;
  NodeService node_service(identity, &ranks,
                           [&kill_target](const WorkerRef& ref, const std::string& reason) {
                             kill_target.Kill(ref, reason);
                           });
  WorkerProxy worker_proxy(flags.node, parts.roots, &ranks);
  NoControl no_control(identity);
  MoreServices more;
  more.services = {&node_service, &worker_proxy};
  more.others = &no_control;
  const absl::StatusOr<std::unique_ptr<ControlServer>> server =
      ControlServer::Start(parts.addresses.listen, flags.port, nullptr, more);
  if (!server.ok()) return server.status();

  // Workers carry their global numbers, so the node joins before they start.
  v1::JoinRequest request;
  request.set_node(flags.node);
  request.set_address(JoinHostPort(parts.addresses.advertise, (*server)->port()));
  request.set_ranks(flags.ranks);
  request.set_first_rank(flags.first_rank < 0 ? 0 : flags.first_rank);
  request.set_any_first_rank(flags.first_rank < 0);
  request.set_incarnation(identity.incarnation);
  JoinerOptions joiner_options;
  joiner_options.primary = identity.primary;
  Joiner joiner(joiner_options, request);
  const absl::StatusOr<v1::JoinResponse> joined =
      joiner.JoinFirst([&parts] { return Arrived(parts.supervisor.signal_fd); });
  if (absl::IsCancelled(joined.status())) return absl::OkStatus();
  if (!joined.ok()) return joined.status();
  const int first_rank = joined->first_rank();
  spdlog::info("joined {} at {} with {} ranks from {}", joined->primary(), identity.primary,
               flags.ranks, first_rank);
  ranks.AddRanks(first_rank, flags.ranks, "");

  parts.supervisor.first_rank = first_rank;
  const absl::StatusOr<std::unique_ptr<Supervisor>> supervisor =
      Supervisor::Make(parts.supervisor, &ranks);
  if (!supervisor.ok()) return supervisor.status();
  kill_target.Set(supervisor->get());
  joiner.KeepJoined(*joined, [&node_service] { return node_service.Unasked(); });

  absl::Status status;
  {
    Stopper stopper(supervisor->get(), [&worker_proxy, &server] {
      (*server)->SetServing(false);
      while (!worker_proxy.Close(absl::Now() + kStopNotice)) {
        spdlog::info("stopping: commands of the primary still run");
      }
    });
    Supervisor::Hooks hooks;
    hooks.all_ready = [&server] {
      PrintListening((*server)->address());
      (*server)->SetServing(true);
    };
    hooks.on_signal = [&stopper](int signal) { stopper.OnSignal(signal); };
    status = (*supervisor)->Run(hooks);
  }
  kill_target.Set(nullptr);
  (*server)->Shutdown(absl::Seconds(1));
  return status;
}

}  // namespace regroup
