// One regroupd: workers, control plane or agent, and server, put together.
#ifndef DAEMON_DAEMON_H_
#define DAEMON_DAEMON_H_

#include "absl/status/status.h"
#include "daemon/flags.h"

namespace regroup {

// Serves until SIGTERM or SIGINT arrives on `signal_fd` (a signalfd; the signals are blocked in
// this process): as a primary, or with --join as a node of another daemon's cluster. Prints
// "listening on HOST:PORT" once all ranks are ready. Call it on the main thread, which supervises
// the workers (see Supervisor). Errors: what keeps it from starting.
absl::Status RunDaemon(const DaemonFlags& flags, int signal_fd);

}  // namespace regroup

#endif  // DAEMON_DAEMON_H_
