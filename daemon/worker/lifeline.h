// A worker never outlives its daemon.
#ifndef DAEMON_WORKER_LIFELINE_H_
#define DAEMON_WORKER_LIFELINE_H_

#include <string>

#include "absl/status/status.h"

namespace regroup {

// Ties this process to its daemon (its parent) in two ways: a thread reads `lifeline_fd`, a pipe
// whose other end only the daemon holds, and sees its end of file; and the kernel sends a signal
// when the parent ends, which also wakes a process that was stopped. Either way `socket_path` is
// unlinked, its folder removed if it is empty, and the process exits at once. Call early, once a
// process. Errors: INVALID_ARGUMENT (not an open descriptor).
absl::Status FollowDaemon(int lifeline_fd, const std::string& socket_path);

}  // namespace regroup

#endif  // DAEMON_WORKER_LIFELINE_H_
