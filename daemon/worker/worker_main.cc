#include "daemon/worker/worker_main.h"

#include <ATen/Parallel.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "daemon/worker/allocator.h"
#include "daemon/worker/lifeline.h"
#include "daemon/worker/worker_server.h"
#include "engine/layout/rank_list.h"

// jemalloc(3), "TUNING"; $MALLOC_CONF adds to it. Activations, states and replicas come and go in
// blocks of many megabytes, and first touches cost more than copying: what was freed stays for 10
// seconds, for whichever thread comes next, and is given back by a thread of jemalloc's.
extern "C" const char* malloc_conf;
const char* malloc_conf =
    "narenas:1,oversize_threshold:0,dirty_decay_ms:10000,muzzy_decay_ms:0,background_thread:true,"
    "max_background_threads:1";

namespace regroup {
namespace {

struct Options {
  WorkerIdentity identity;
  std::string socket;
  int lifeline_fd = -1;
  std::string device = "cpu";
};

void AddFlags(CLI::App* app, Options* options) {
  app->add_option("--rank", options->identity.rank, "Global rank")
      ->required()
      ->check(CLI::Range(0, kMaxRank));
  app->add_option("--socket", options->socket, "Path of the unix socket to serve on")->required();
  app->add_option("--incarnation", options->identity.incarnation, "Random id of this start")
      ->required();
  app->add_option("--lifeline-fd", options->lifeline_fd, "Read end of a pipe that the daemon holds")
      ->required();
  app->add_option("--host", options->identity.host, "Address at which other ranks reach this one")
      ->required();
  app->add_option("--device", options->device, "cpu");
}

void PrepareProcess() {
  // Ctrl-C and a closed terminal are the daemon's to handle; this process follows it.
  std::signal(SIGINT, SIG_IGN);
  std::signal(SIGHUP, SIG_IGN);
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);  // a file beyond the limit is an error of its write, no end
  // Where Yama is set to 1, a process reads the memory of its descendants only, and of those that
  // name an ancestor of it: other workers of this daemon may read from this one (relayouts do).
  prctl(PR_SET_PTRACER, getppid(), 0, 0, 0);
  HoldLargeBlocks();
  const char* threads = std::getenv("OMP_NUM_THREADS");
  int count = 0;
  if (threads != nullptr && absl::SimpleAtoi(threads, &count) && count > 0) {
    at::set_num_threads(count);
  }
}

absl::Status Run(const Options& options) {
  if (options.device != "cpu") {
    return absl::UnimplementedError(
        absl::StrCat("not available in this version: --device=", options.device, "; allowed: cpu"));
  }
  if (absl::Status status = FollowDaemon(options.lifeline_fd, options.socket); !status.ok()) {
    return status;
  }
  PrepareProcess();
  absl::StatusOr<std::unique_ptr<WorkerServer>> server =
      WorkerServer::Start(options.identity, options.socket);
  if (!server.ok()) return server.status();
  (*server)->Wait();
  return absl::OkStatus();
}

}  // namespace

int WorkerMain(int argc, char** argv) {
  Options options;
  CLI::App app("Holds the engines of one rank. Started by regroupd.", "regroup-worker");
  AddFlags(&app, &options);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    return app.exit(e) == 0 ? 0 : 2;
  }
  const absl::Status status = Run(options);
  if (status.ok()) return 0;
  // The daemon passes on what its workers write to stderr, under their names.
  std::fprintf(stderr, "error: %s\n", std::string(status.message()).c_str());
  return 1;
}

}  // namespace regroup
