// One child process: started so that it cannot outlive this daemon, watched through a pidfd.
#ifndef DAEMON_NODE_WORKER_PROCESS_H_
#define DAEMON_NODE_WORKER_PROCESS_H_

#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "daemon/node/fd.h"

namespace regroup {

struct SpawnOptions {
  std::string binary;                                            // absolute path
  std::vector<std::string> args;                                 // without argv[0]
  std::vector<std::pair<std::string, std::string>> environment;  // added to, or instead of, ours
  int lifeline_fd = -1;  // the only descriptor beyond 0-2 that the child inherits
  int nice = 0;          // added to this process's niceness
};

// Move only. The destructor kills and reaps a process that still runs.
class WorkerProcess {
 public:
  // Starts the process: in its own process group (a terminal's Ctrl-C is for the daemon), stdin
  // from /dev/null, stdout and stderr into one pipe, all signals unblocked, every other descriptor
  // closed on exec. Until it says otherwise (a worker that follows its daemon does) it is SIGKILLed
  // when the calling thread ends, so call it on the main thread only.
  // Errors: INTERNAL, naming the binary and what the system said.
  static absl::StatusOr<WorkerProcess> Spawn(const SpawnOptions& options);

  WorkerProcess(WorkerProcess&& other) noexcept;
  WorkerProcess& operator=(WorkerProcess&&) = delete;
  ~WorkerProcess();

  int pid() const { return pid_; }
  int pidfd() const { return pidfd_.get(); }          // readable once the process has ended
  int output_fd() const { return output_fd_.get(); }  // non-blocking read end of stdout and stderr

  void Kill() const;  // SIGKILL; no race with reuse of the pid

  struct Exit {
    bool signaled = false;
    int code = 0;
  };
  // How it ended; nullopt while it runs. Reaps it.
  absl::optional<Exit> Reap();

 private:
  WorkerProcess(int pid, Fd pidfd, Fd output_fd);

  int pid_;  // 0 once reaped or moved from
  Fd pidfd_;
  Fd output_fd_;
};

}  // namespace regroup

#endif  // DAEMON_NODE_WORKER_PROCESS_H_
