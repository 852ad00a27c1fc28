#include "daemon/worker/lifeline.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <cerrno>
#include <thread>

#include "absl/strings/str_cat.h"

namespace regroup {
namespace {

// What Leave needs, in a form that a signal handler may use. Set once, never freed.
struct Ties {
  std::string socket_path;
  std::string folder;
  pid_t daemon = 0;
};
const Ties* ties = nullptr;

[[noreturn]] void Leave() {
  unlink(ties->socket_path.c_str());
  rmdir(ties->folder.c_str());  // fails while other workers use it
  _exit(0);
}

// Also sent by people who continue a stopped worker, and by the kernel when the thread of the
// daemon that spawned this process ends: then the parent is still the daemon.
void OnContinue(int) {
  const int saved = errno;
  if (getppid() != ties->daemon) Leave();
  errno = saved;
}

void WaitForEndOfFile(int fd) {
  char ignored = 0;
  while (true) {
    const ssize_t got = read(fd, &ignored, 1);
    if (got == 0 || (got < 0 && errno != EINTR)) return;
  }
}

}  // namespace

absl::Status FollowDaemon(int lifeline_fd, const std::string& socket_path) {
  if (fcntl(lifeline_fd, F_SETFD, FD_CLOEXEC) != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--lifeline-fd=", lifeline_fd, " is not an open descriptor; allowed: a pipe's read end"));
  }
  ties = new Ties{socket_path, socket_path.substr(0, socket_path.rfind('/')), getppid()};
  struct sigaction action {};
  action.sa_handler = OnContinue;
  action.sa_flags = SA_RESTART;
  sigaction(SIGCONT, &action, nullptr);
  prctl(PR_SET_PDEATHSIG, SIGCONT);
  // A daemon that died before this line left an end of file behind.
  std::thread([lifeline_fd] {
    WaitForEndOfFile(lifeline_fd);
    Leave();
  }).detach();
  return absl::OkStatus();
}

}  // namespace regroup
