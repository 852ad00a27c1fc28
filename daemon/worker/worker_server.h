// A whole worker: its engines, its executor and its service on a unix socket.
#ifndef DAEMON_WORKER_WORKER_SERVER_H_
#define DAEMON_WORKER_WORKER_SERVER_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "daemon/worker/commands.h"

namespace regroup {

class WorkerServer {
 public:
  // Serves on unix:`socket_path`, whose folder is private to this user. Errors: INVALID_ARGUMENT (a
  // path that is too long), INTERNAL (cannot listen); each names the path.
  static absl::StatusOr<std::unique_ptr<WorkerServer>> Start(const WorkerIdentity& identity,
                                                             const std::string& socket_path);

  // Ends the running calls as cancelled, waits for the running command, frees everything.
  virtual ~WorkerServer() = default;

  // Blocks for as long as the server serves.
  virtual void Wait() = 0;
};

}  // namespace regroup

#endif  // DAEMON_WORKER_WORKER_SERVER_H_
