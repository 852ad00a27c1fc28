// A worker without an engine, for the tests of the supervisor: takes the worker's command line,
// answers GetState, and misbehaves as the model of a PrepareEngine tells it: "exit:3", "segv",
// "print:TEXT".
#include <poll.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "grpcpp/server_builder.h"
#include "regroup/v1/worker.grpc.pb.h"

namespace regroup {
namespace {

class FakeWorkerService final : public v1::Worker::Service {
 public:
  FakeWorkerService(int rank, uint64_t incarnation) : rank_(rank), incarnation_(incarnation) {}

  grpc::Status GetState(grpc::ServerContext*, const v1::WorkerStateRequest*,
                        v1::WorkerState* state) override {
    state->set_rank(rank_);
    state->set_incarnation(incarnation_);
    state->set_pid(getpid());
    return grpc::Status::OK;
  }

  grpc::Status Execute(grpc::ServerContext*, const v1::Command* command,
                       v1::CommandResult*) override {
    absl::string_view order = command->prepare_engine().spec().model();
    int code = 0;
    if (absl::ConsumePrefix(&order, "exit:") && absl::SimpleAtoi(order, &code)) _exit(code);
    if (order == "segv") {
      signal(SIGSEGV, SIG_DFL);
      raise(SIGSEGV);
    }
    if (absl::ConsumePrefix(&order, "print:")) {
      const std::string line = absl::StrCat(order, "\n");
      (void)!write(STDERR_FILENO, line.data(), line.size());
    }
    return grpc::Status::OK;
  }

 private:
  const int rank_;
  const uint64_t incarnation_;
};

int Main(int argc, char** argv) {
  std::map<std::string, std::string> flags;
  for (int i = 1; i < argc; ++i) {
    const std::pair<std::string, std::string> flag =
        absl::StrSplit(argv[i], absl::MaxSplits('=', 1));
    flags[flag.first] = flag.second;
  }
  const char* fail = getenv("FAKE_WORKER_FAILS");
  if (fail != nullptr && flags["--rank"] == fail) {
    fprintf(stderr, "cannot find my libraries\n");
    return 4;
  }
  FakeWorkerService service(atoi(flags["--rank"].c_str()),
                            strtoull(flags["--incarnation"].c_str(), nullptr, 10));
  grpc::ServerBuilder builder;
  builder.AddListeningPort(absl::StrCat("unix:", flags["--socket"]),
                           grpc::InsecureServerCredentials());
  builder.RegisterService(&service);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  if (server == nullptr) return 5;
  // Ends when the daemon does.
  pollfd lifeline = {atoi(flags["--lifeline-fd"].c_str()), POLLIN, 0};
  while (poll(&lifeline, 1, -1) < 0) {
  }
  _exit(0);
}

}  // namespace
}  // namespace regroup

int main(int argc, char** argv) { return regroup::Main(argc, argv); }
