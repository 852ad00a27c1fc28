#include "daemon/node/worker_process.h"

#include <fcntl.h>
#include <linux/close_range.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

extern "C" {
#include <sys/pidfd.h>  // glibc 2.36 forgot to declare these extern "C"
}

#include <cerrno>
#include <csignal>
#include <cstring>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace regroup {
namespace {

struct Pipe {
  Fd read;
  Fd write;
};

absl::StatusOr<Pipe> MakePipe() {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) {
    return absl::InternalError(absl::StrCat("cannot make a pipe: ", strerror(errno)));
  }
  return Pipe{Fd(ends[0]), Fd(ends[1])};
}

std::vector<std::string> MergedEnvironment(
    const std::vector<std::pair<std::string, std::string>>& changes) {
  std::vector<std::string> result;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    bool replaced = false;
    for (const auto& change : changes) {
      replaced = replaced || absl::StartsWith(*entry, absl::StrCat(change.first, "="));
    }
    if (!replaced) result.emplace_back(*entry);
  }
  for (const auto& change : changes) {
    result.push_back(absl::StrCat(change.first, "=", change.second));
  }
  return result;
}

std::vector<char*> Pointers(std::vector<std::string>& strings) {
  std::vector<char*> result;
  result.reserve(strings.size() + 1);
  for (std::string& text : strings) result.push_back(text.data());
  result.push_back(nullptr);
  return result;
}

// Everything between fork and exec. This process has threads, so only system calls are allowed
// here. Writes errno to `failure_fd` and ends if the program cannot be started.
[[noreturn]] void RunChild(const char* binary, char* const* argv, char* const* envp,
                           const SpawnOptions& options, int output_fd, int failure_fd,
                           int parent_pid) {
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  signal(SIGPIPE, SIG_DFL);
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent_pid) _exit(1);  // the daemon ended before the line above
  if (options.nice != 0) {
    setpriority(PRIO_PROCESS, 0, getpriority(PRIO_PROCESS, 0) + options.nice);
  }
  const int null_fd = open("/dev/null", O_RDONLY);
  dup2(null_fd, STDIN_FILENO);
  dup2(output_fd, STDOUT_FILENO);
  dup2(output_fd, STDERR_FILENO);
  close_range(STDERR_FILENO + 1, ~0U, CLOSE_RANGE_CLOEXEC);
  if (options.lifeline_fd >= 0) fcntl(options.lifeline_fd, F_SETFD, 0);
  execve(binary, argv, envp);
  const int error = errno;
  (void)!write(failure_fd, &error, sizeof(error));
  _exit(127);
}

}  // namespace

WorkerProcess::WorkerProcess(int pid, Fd pidfd, Fd output_fd)
    : pid_(pid), pidfd_(std::move(pidfd)), output_fd_(std::move(output_fd)) {}

WorkerProcess::WorkerProcess(WorkerProcess&& other) noexcept
    : pid_(std::exchange(other.pid_, 0)),
      pidfd_(std::move(other.pidfd_)),
      output_fd_(std::move(other.output_fd_)) {}

WorkerProcess::~WorkerProcess() {
  if (pid_ == 0) return;
  Kill();
  siginfo_t info;
  while (waitid(P_PID, pid_, &info, WEXITED) != 0 && errno == EINTR) {
  }
}

absl::StatusOr<WorkerProcess> WorkerProcess::Spawn(const SpawnOptions& options) {
  absl::StatusOr<Pipe> output = MakePipe();
  if (!output.ok()) return output.status();
  absl::StatusOr<Pipe> failure = MakePipe();
  if (!failure.ok()) return failure.status();
  fcntl(output->read.get(), F_SETFL, O_NONBLOCK);

  std::vector<std::string> args = {options.binary};
  args.insert(args.end(), options.args.begin(), options.args.end());
  std::vector<std::string> environment = MergedEnvironment(options.environment);
  const std::vector<char*> argv = Pointers(args);
  const std::vector<char*> envp = Pointers(environment);

  const int parent_pid = getpid();
  const int pid = fork();
  if (pid < 0) return absl::InternalError(absl::StrCat("cannot fork: ", strerror(errno)));
  if (pid == 0) {
    RunChild(options.binary.c_str(), argv.data(), envp.data(), options, output->write.get(),
             failure->write.get(), parent_pid);
  }
  Fd pidfd(pidfd_open(pid, 0));
  if (!pidfd.valid()) {
    const int error = errno;
    kill(pid, SIGKILL);
    while (waitpid(pid, nullptr, 0) < 0 && errno == EINTR) {
    }
    return absl::InternalError(absl::StrCat("cannot open a pidfd: ", strerror(error)));
  }
  WorkerProcess process(pid, std::move(pidfd), std::move(output->read));
  failure->write.Reset();
  int error = 0;
  ssize_t got;
  do {
    got = read(failure->read.get(), &error, sizeof(error));
  } while (got < 0 && errno == EINTR);
  if (got == sizeof(error)) {
    return absl::InternalError(
        absl::StrCat("cannot start ", options.binary, ": ", strerror(error)));
  }
  return process;
}

void WorkerProcess::Kill() const { pidfd_send_signal(pidfd_.get(), SIGKILL, nullptr, 0); }

absl::optional<WorkerProcess::Exit> WorkerProcess::Reap() {
  siginfo_t info;
  info.si_pid = 0;
  if (waitid(P_PID, pid_, &info, WEXITED | WNOHANG) != 0 || info.si_pid == 0) {
    return absl::nullopt;
  }
  pid_ = 0;
  Exit result;
  result.signaled = info.si_code != CLD_EXITED;
  result.code = info.si_status;
  return result;
}

}  // namespace regroup
