// A worker never outlives its daemon.
#ifndef DAEMON_WORKER_LIFELINE_H_
#define DAEMON_WORKER_LIFELINE_H_

#include <string>

#include "absl/status/status.h"

namespace regroup {

// Ties this process to its daemon in two ways: the kernel kills it when the daemon's spawning
// thread ends, and a thread that reads `lifeline_fd`, a pipe whose other end only the daemon holds,
// sees its end of file. Then `socket_path` is unlinked, its folder removed if it is empty, and the
// process exits at once. Call early, once. Errors: INVALID_ARGUMENT (not an open descriptor).
absl::Status FollowDaemon(int lifeline_fd, const std::string& socket_path);

}  // namespace regroup

#endif  // DAEMON_WORKER_LIFELINE_H_
