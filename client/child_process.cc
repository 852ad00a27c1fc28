#include "client/child_process.h"

#include <fcntl.h>
#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>

namespace regroup {
namespace {

constexpr int kDeadlineMs = 30000;

std::vector<char*> Pointers(const std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  pointers.reserve(texts.size() + 1);
  for (const std::string& text : texts) pointers.push_back(const_cast<char*>(text.c_str()));
  pointers.push_back(nullptr);
  return pointers;
}

void Close(int* fd) {
  if (*fd >= 0) close(*fd);
  *fd = -1;
}

// Appends what `fd` has; closes it at its end. A terminal ends with an error instead.
void ReadInto(int* fd, std::string* text) {
  char buffer[4096];
  const ssize_t count = read(*fd, buffer, sizeof(buffer));
  if (count > 0) {
    text->append(buffer, count);
  } else {
    Close(fd);
  }
}

}  // namespace

ChildProcess::ChildProcess(const std::string& program, const std::vector<std::string>& arguments,
                           const Options& options) {
  int out[2] = {-1, -1};
  int err[2] = {-1, -1};
  if (options.terminal) {
    const winsize size = {24, 120, 0, 0};
    if (openpty(&out[0], &out[1], nullptr, nullptr, &size) != 0) std::abort();
    fcntl(out[0], F_SETFD, FD_CLOEXEC);
    fcntl(out[1], F_SETFD, FD_CLOEXEC);
  } else if (pipe2(out, O_CLOEXEC) != 0 || pipe2(err, O_CLOEXEC) != 0) {
    std::abort();
  }
  std::vector<std::string> words = {program};
  words.insert(words.end(), arguments.begin(), arguments.end());
  const std::vector<char*> argv = Pointers(words);
  const std::vector<char*> envp = Pointers(options.environment);
  char* const resolved = realpath(program.c_str(), nullptr);
  pid_ = fork();
  if (pid_ == 0) {
    dup2(out[1], STDOUT_FILENO);
    dup2(options.terminal ? out[1] : err[1], STDERR_FILENO);
    if (options.folder.empty() || chdir(options.folder.c_str()) == 0) {
      execve(resolved, argv.data(), envp.data());
    }
    _exit(127);
  }
  std::free(resolved);
  close(out[1]);
  if (!options.terminal) close(err[1]);
  out_fd_ = out[0];
  err_fd_ = err[0];
}

ChildProcess::~ChildProcess() {
  if (pid_ > 0) {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  Close(&out_fd_);
  Close(&err_fd_);
}

void ChildProcess::Send(int signal) const { kill(pid_, signal); }

bool ChildProcess::ReadSome() {
  if (out_fd_ < 0 && err_fd_ < 0) return false;
  pollfd waits[2] = {{out_fd_, POLLIN, 0}, {err_fd_, POLLIN, 0}};
  if (poll(waits, 2, kDeadlineMs) <= 0) return false;
  if (waits[0].revents != 0) ReadInto(&out_fd_, &out_);
  if (waits[1].revents != 0) ReadInto(&err_fd_, &err_);
  return true;
}

bool ChildProcess::WaitForOutput(const std::string& text) {
  while (out_.find(text) == std::string::npos) {
    if (!ReadSome()) return false;
  }
  return true;
}

void ChildProcess::CloseOutput() { Close(&out_fd_); }

int ChildProcess::Wait() {
  while (ReadSome()) {
  }
  if (out_fd_ >= 0 || err_fd_ >= 0) kill(pid_, SIGKILL);
  int status = 0;
  waitpid(pid_, &status, 0);
  pid_ = -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

}  // namespace regroup
