// What both kinds of daemon, the primary and the joined one, are made of.
#ifndef DAEMON_DAEMON_PARTS_H_
#define DAEMON_DAEMON_PARTS_H_

#include <functional>
#include <thread>
#include <utility>

#include "absl/status/status.h"
#include "daemon/agent/addresses.h"
#include "daemon/control/data_roots.h"
#include "daemon/flags.h"
#include "daemon/node/state_dir.h"
#include "daemon/node/supervisor.h"

namespace regroup {

// What is done and checked before anything runs.
struct DaemonParts {
  DataRoots roots;
  StateDir state_dir;
  Addresses addresses;
  SupervisorOptions supervisor;  // complete but for first_rank
};

// Reacts to the first signal by `drain`, on a thread of its own, which lets what runs end; then, or
// at a second signal, the supervisor is stopped.
class Stopper {
 public:
  Stopper(Supervisor* supervisor, std::function<void()> drain)
      : supervisor_(supervisor), drain_(std::move(drain)) {}
  ~Stopper() {
    if (thread_.joinable()) thread_.join();
  }

  void OnSignal(int signal);

 private:
  Supervisor* const supervisor_;
  const std::function<void()> drain_;
  std::thread thread_;
};

// Says where clients reach the daemon.
void PrintListening(const std::string& address);

absl::Status RunPrimary(const DaemonFlags& flags, DaemonParts parts);
absl::Status RunJoined(const DaemonFlags& flags, DaemonParts parts);

}  // namespace regroup

#endif  // DAEMON_DAEMON_PARTS_H_
