// regroupctl: asks a Regroup cluster for engines, trains, moves and reads them. See regroupctl
// --help.
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <exception>

#include "CLI/CLI.hpp"
#include "client/commands.h"
#include "client/errors.h"
#include "client/interrupt.h"
#include "client/session.h"

namespace {

// If stdout is closed, a connection must not take its place; writing to it stays an error.
void OccupyStandardFiles() {
  int fd;
  do {
    fd = open("/dev/null", O_RDONLY);
  } while (fd >= 0 && fd <= STDERR_FILENO);
  if (fd >= 0) close(fd);
}

}  // namespace

int main(int argc, char** argv) {
  OccupyStandardFiles();
  // A reader of stdout that is gone is an error like a full disk: see Session::Print.
  signal(SIGPIPE, SIG_IGN);
  try {
    regroup::Session session(regroup::Interrupt::Install());
    CLI::App app("Asks a Regroup cluster for engines, trains, moves and reads them.", "regroupctl");
    regroup::AddCommands(&app, &session);
    const absl::Status status = regroup::RunCommandLine(&app, &session, argc, argv);
    if (status.ok()) return regroup::kExitOk;
    std::fprintf(stderr, "%s\n", regroup::ErrorLine(status, session.server).c_str());
    return regroup::ExitCodeOf(status);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "regroupctl: %s\n", regroup::OneLine(error.what()).c_str());
    return regroup::kExitRefused;
  }
}
