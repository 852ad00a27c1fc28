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
  // A daemon that died before this line left an end of file behind, which the thread sees.
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  std::thread([lifeline_fd, socket_path] {
    WaitForEndOfFile(lifeline_fd);
    unlink(socket_path.c_str());
    rmdir(socket_path.substr(0, socket_path.rfind('/')).c_str());  // fails while others use it
    _exit(0);
  }).detach();
  return absl::OkStatus();
}

}  // namespace regroup
