#include "daemon/daemon.h"

#include <sys/resource.h>

#include <cstdio>
#include <filesystem>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/daemon_parts.h"
#include "spdlog/spdlog.h"

namespace regroup {
namespace {

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

}  // namespace

void Stopper::OnSignal(int signal) {
  if (thread_.joinable()) {
    supervisor_->Stop();
    return;
  }
  spdlog::info("signal {}: stopping", signal);
  thread_ = std::thread([this] {
    drain_();
    supervisor_->Stop();
  });
}

void PrintListening(const std::string& address) {
  printf("listening on %s\n", address.c_str());
  fflush(stdout);
}

absl::Status RunDaemon(const DaemonFlags& flags, int signal_fd) {
  AllowManyFiles();
  absl::StatusOr<DataRoots> roots = DataRoots::Make(flags.data_roots);
  if (!roots.ok()) return roots.status();
  const absl::StatusOr<std::string> worker_binary = WorkerBinary();
  if (!worker_binary.ok()) return worker_binary.status();
  absl::StatusOr<StateDir> state_dir = LockStateDir(flags);
  if (!state_dir.ok()) return state_dir.status();
  AddressFlags address_flags;
  address_flags.listen = flags.host;
  address_flags.advertise = flags.advertise;
  address_flags.join_host = flags.join_host;
  address_flags.join_port = flags.join_port;
  absl::StatusOr<Addresses> addresses = ChooseAddresses(address_flags, SystemAddresses());
  if (!addresses.ok()) return addresses.status();

  SupervisorOptions supervisor;
  supervisor.ranks = flags.ranks;
  supervisor.worker_binary = *worker_binary;
  supervisor.device = flags.device;
  supervisor.host = addresses->advertise;
  supervisor.signal_fd = signal_fd;
  DaemonParts parts{*std::move(roots), *std::move(state_dir), *std::move(addresses), supervisor};
  return flags.join_host.empty() ? RunPrimary(flags, std::move(parts))
                                 : RunJoined(flags, std::move(parts));
}

}  // namespace regroup
