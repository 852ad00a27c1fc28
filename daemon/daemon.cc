#include "daemon/daemon.h"

#include <sys/resource.h>

#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "daemon/control/control.h"
#include "daemon/control/control_server.h"
#include "daemon/node/rank_table.h"
#include "daemon/node/state_dir.h"
#include "daemon/node/supervisor.h"
#include "spdlog/spdlog.h"

namespace regroup {
namespace {

// How often a daemon that was told to stop says what it still waits for.
constexpr absl::Duration kStopNotice = absl::Seconds(10);

// Three descriptors a worker, and a connection.
void AllowManyFiles() {
  rlimit limit;
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

absl::StatusOr<std::string> WorkerBinary() {
  std::error_code error;
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) return absl::InternalError(absl::StrCat("/proc/self/exe: ", error.message()));
  return (self.parent_path() / "regroup-worker").string();
}

absl::StatusOr<StateDir> LockStateDir(const DaemonFlags& flags) {
  if (!flags.state_dir.empty()) return StateDir::Lock(flags.state_dir);
  const absl::StatusOr<std::string> path = DefaultStateDir(flags.node);
  if (!path.ok()) return path.status();
  return StateDir::Lock(*path);
}

// Reacts to the first signal by letting what runs end, and to a second one by not waiting for it.
// What runs is a step, a token or a phase, whose waits have time limits of their own.
class Stopper {
 public:
  Stopper(Control* control, ControlServer* server, Supervisor* supervisor)
      : control_(control), server_(server), supervisor_(supervisor) {}
  ~Stopper() {
    if (thread_.joinable()) thread_.join();
  }

  void OnSignal(int signal) {
    if (thread_.joinable()) {
      supervisor_->Stop();
      return;
    }
    spdlog::info("signal {}: stopping", signal);
    server_->SetServing(false);
    thread_ = std::thread([this] {
      while (!control_->Shutdown(kStopNotice)) {
        for (const v1::Operation& operation : control_->operations().Running()) {
          spdlog::info("stopping: {} {} {} still runs ({})", operation.id(), operation.kind(),
                       operation.engine(), operation.phase());
        }
      }
      supervisor_->Stop();
    });
  }

 private:
  Control* const control_;
  ControlServer* const server_;
  Supervisor* const supervisor_;
  std::thread thread_;
};

}  // namespace

absl::Status RunDaemon(const DaemonFlags& flags, int signal_fd) {
  AllowManyFiles();
  absl::StatusOr<DataRoots> roots = DataRoots::Make(flags.data_roots);
  if (!roots.ok()) return roots.status();
  const absl::StatusOr<std::string> worker_binary = WorkerBinary();
  if (!worker_binary.ok()) return worker_binary.status();
  const absl::StatusOr<StateDir> state_dir = LockStateDir(flags);
  if (!state_dir.ok()) return state_dir.status();

  RankTable ranks(flags.ranks);
  SupervisorOptions supervisor_options;
  supervisor_options.ranks = flags.ranks;
  supervisor_options.worker_binary = *worker_binary;
  supervisor_options.device = flags.device;
  supervisor_options.signal_fd = signal_fd;
  const absl::StatusOr<std::unique_ptr<Supervisor>> supervisor =
      Supervisor::Make(supervisor_options, &ranks);
  if (!supervisor.ok()) return supervisor.status();

  ControlOptions control_options;
  control_options.node = flags.node;
  control_options.limits.ranks = flags.ranks;
  control_options.limits.roots = *std::move(roots);
  Control control(control_options, &ranks,
                  [&supervisor](const WorkerRef& ref, const std::string& reason) {
                    (*supervisor)->Kill(ref, reason);
                  });
  const absl::StatusOr<std::unique_ptr<ControlServer>> server =
      ControlServer::Start(flags.host, flags.port, &control);
  if (!server.ok()) return server.status();

  absl::Status status;
  {
    Stopper stopper(&control, server->get(), supervisor->get());
    Supervisor::Hooks hooks;
    hooks.all_ready = [&server] {
      printf("listening on %s\n", (*server)->address().c_str());
      fflush(stdout);
      (*server)->SetServing(true);
    };
    hooks.on_signal = [&stopper](int signal) { stopper.OnSignal(signal); };
    status = (*supervisor)->Run(hooks);
  }
  control.Shutdown(absl::InfiniteDuration());  // no worker is left to wait for
  (*server)->Shutdown(absl::Seconds(1));
  return status;
}

}  // namespace regroup
