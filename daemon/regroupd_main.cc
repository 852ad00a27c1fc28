// regroupd: see --help.
#include <fcntl.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "daemon/daemon.h"
#include "daemon/flags.h"
#include "spdlog/sinks/stdout_sinks.h"
#include "spdlog/spdlog.h"

namespace {

// Whatever is opened later must not become stdin, stdout or stderr.
void OpenStandardFiles() {
  int fd;
  do {
    fd = open("/dev/null", O_RDWR);
  } while (fd >= 0 && fd <= STDERR_FILENO);
  if (fd >= 0) close(fd);
}

// Blocks the signals that stop the daemon, in all threads to come, and returns where they arrive.
int CatchSignals() {
  signal(SIGPIPE, SIG_IGN);
  signal(SIGXFSZ, SIG_IGN);  // a file beyond the limit is an error of its write, no end
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGHUP);
  sigprocmask(SIG_BLOCK, &signals, nullptr);
  return signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK);
}

}  // namespace

int main(int argc, char** argv) {
  const regroup::ParsedFlags parsed = regroup::ParseFlags(argc, argv);
  if (!parsed.run) {
    fputs(parsed.text.c_str(), parsed.exit_code == 0 ? stdout : stderr);
    return parsed.exit_code;
  }
  OpenStandardFiles();
  spdlog::set_default_logger(spdlog::stderr_logger_mt("regroupd"));
  setenv("GRPC_VERBOSITY", "NONE",
         /*replace=*/0);  // errors are reported by who knows what they mean
  const absl::Status status = regroup::RunDaemon(parsed.flags, CatchSignals());
  if (status.ok()) return 0;
  fprintf(stderr, "regroupd: %s\n", std::string(status.message()).c_str());
  return 1;
}
