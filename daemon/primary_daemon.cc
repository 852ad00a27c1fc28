// A daemon that serves Control: alone, or with other nodes that join it.
#include <memory>
#include <utility>

#include "absl/time/time.h"
#include "daemon/control/cluster.h"
#include "daemon/control/control.h"
#include "daemon/control/control_server.h"
#include "daemon/control/join_service.h"
#include "daemon/daemon_parts.h"
#include "daemon/node/rank_table.h"
#include "daemon/store/store.h"
#include "spdlog/spdlog.h"

namespace regroup {
namespace {

// How often a daemon that was told to stop says what it still waits for: a step, a token or a
// phase, whose waits have time limits of their own.
constexpr absl::Duration kStopNotice = absl::Seconds(10);

}  // namespace

absl::Status RunPrimary(const DaemonFlags& flags, DaemonParts parts) {
  const int first_rank = flags.first_rank < 0 ? 0 : flags.first_rank;
  RankTable ranks(0);
  ranks.AddRanks(first_rank, flags.ranks, "");
  parts.supervisor.first_rank = first_rank;
  const absl::StatusOr<std::unique_ptr<Supervisor>> supervisor =
      Supervisor::Make(parts.supervisor, &ranks);
  if (!supervisor.ok()) return supervisor.status();

  const absl::StatusOr<std::unique_ptr<Store>> store = Store::Open(parts.state_dir.path());
  if (!store.ok()) return store.status();

  ControlOptions control_options;
  control_options.store = store->get();
  control_options.node = flags.node;
  control_options.first_rank = first_rank;
  control_options.limits.ranks = flags.ranks;
  control_options.limits.roots = parts.roots;
  std::unique_ptr<Cluster> cluster;
  Control control(control_options, &ranks, [&](const WorkerRef& ref, const std::string& reason) {
    if (ranks.NodeOf(ref.rank).empty()) {
      (*supervisor)->Kill(ref, reason);
    } else {
      cluster->Kill(ref, reason);
    }
  });
  const absl::StatusOr<uint64_t> cluster_id = (*store)->ClusterId();
  if (!cluster_id.ok()) return cluster_id.status();
  cluster = std::make_unique<Cluster>(&control, &ranks, NodeWatcherOptions(),
                                      parts.addresses.advertise, *cluster_id);
  if (absl::Status restored = control.Restore(); !restored.ok()) return restored;
  JoinService join_service(cluster.get());
  MoreServices more;
  more.services = {&join_service};
  const absl::StatusOr<std::unique_ptr<ControlServer>> server =
      ControlServer::Start(parts.addresses.listen, flags.port, &control, more);
  if (!server.ok()) return server.status();

  // Workers of other nodes go on; nobody here waits for them any more. What that looks like is no
  // news of their engines: the store hears nothing from here on.
  const auto let_go = [&store, &ranks] {
    (*store)->Freeze();
    ranks.EndCalls("the primary is stopping");
  };

  absl::Status status;
  {
    Stopper stopper(supervisor->get(), [&control, &server] {
      (*server)->SetServing(false);
      while (!control.Shutdown(kStopNotice)) {
        for (const v1::Operation& operation : control.operations().Running()) {
          spdlog::info("stopping: {} {} {} still runs ({})", operation.id(), operation.kind(),
                       operation.engine(), operation.phase());
        }
      }
    });
    Supervisor::Hooks hooks;
    hooks.all_ready = [&server] {
      PrintListening((*server)->address());
      (*server)->SetServing(true);
    };
    bool stopping = false;
    hooks.on_signal = [&](int signal) {
      // A second one does not wait for workers of other nodes either.
      if (std::exchange(stopping, true)) let_go();
      stopper.OnSignal(signal);
    };
    status = (*supervisor)->Run(hooks);
  }
  let_go();
  control.Shutdown(absl::InfiniteDuration());
  (*server)->Shutdown(absl::Seconds(1));
  cluster = nullptr;
  return status;
}

}  // namespace regroup
