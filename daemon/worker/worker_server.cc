#include "daemon/worker/worker_server.h"

#include <sys/resource.h>
#include <sys/un.h>

#include <chrono>

#include "absl/strings/str_cat.h"
#include "daemon/worker/engine_table.h"
#include "daemon/worker/executor.h"
#include "daemon/worker/worker_service.h"
#include "grpcpp/security/server_credentials.h"
#include "grpcpp/server.h"
#include "grpcpp/server_builder.h"

namespace regroup {
namespace {

constexpr int kMaxMessageBytes = 256 << 20;  // as the daemon's client allows

// Compute threads inherit this from the executor, so that status calls get a core while they are
// busy. Niceness is a thread's own on Linux.
constexpr int kExecutorNice = 5;

class UnixSocketServer : public WorkerServer {
 public:
  explicit UnixSocketServer(const WorkerIdentity& identity)
      : commands_(identity, &table_),
        executor_(
            [] { setpriority(PRIO_PROCESS, 0, getpriority(PRIO_PROCESS, 0) + kExecutorNice); }),
        service_(identity, &table_, &commands_, &executor_) {}

  ~UnixSocketServer() override {
    // What is posted has to end before the calls can, and its calls before the service goes.
    for (const auto& engine : table_.List()) {
      engine->Abort(absl::CancelledError("the worker ends"), /*move_only=*/false);
    }
    if (server_ != nullptr) server_->Shutdown(std::chrono::system_clock::now());
  }

  absl::Status Listen(const std::string& socket_path) {
    if (socket_path.size() >= sizeof(sockaddr_un::sun_path)) {
      return absl::InvalidArgumentError(absl::StrCat("--socket=", socket_path, " has ",
                                                     socket_path.size(), " bytes; allowed: up to ",
                                                     sizeof(sockaddr_un::sun_path) - 1));
    }
    grpc::ServerBuilder builder;
    builder.SetMaxReceiveMessageSize(kMaxMessageBytes);
    builder.SetMaxSendMessageSize(kMaxMessageBytes);
    builder.AddListeningPort(absl::StrCat("unix:", socket_path), grpc::InsecureServerCredentials());
    builder.RegisterService(&service_);
    server_ = builder.BuildAndStart();
    if (server_ == nullptr) {
      return absl::InternalError(absl::StrCat("--socket=", socket_path, ": cannot listen there"));
    }
    return absl::OkStatus();
  }

  void Wait() override { server_->Wait(); }

 private:
  EngineTable table_;
  Commands commands_;
  Executor executor_;
  WorkerService service_;
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<WorkerServer>> WorkerServer::Start(const WorkerIdentity& identity,
                                                                  const std::string& socket_path) {
  auto server = std::make_unique<UnixSocketServer>(identity);
  if (absl::Status status = server->Listen(socket_path); !status.ok()) return status;
  return server;
}

}  // namespace regroup
