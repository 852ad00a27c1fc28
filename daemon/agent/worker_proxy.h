// The Worker service of a joined daemon: hands each call to the worker that its metadata names.
#ifndef DAEMON_AGENT_WORKER_PROXY_H_
#define DAEMON_AGENT_WORKER_PROXY_H_

#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "daemon/control/data_roots.h"
#include "daemon/control/task_group.h"
#include "daemon/node/rank_table.h"
#include "regroup/v1/worker.grpc.pb.h"

namespace regroup {

// Thread safe. What a worker was asked goes on when the caller's connection breaks: a step is never
// left half done because a primary died.
class WorkerProxy final : public v1::Worker::CallbackService {
 public:
  // `ranks` outlives this.
  WorkerProxy(const std::string& node, const DataRoots& roots, RankTable* ranks)
      : node_(node), roots_(roots), ranks_(ranks) {}

  grpc::ServerUnaryReactor* GetState(grpc::CallbackServerContext* context,
                                     const v1::WorkerStateRequest* request,
                                     v1::WorkerState* response) override;
  grpc::ServerUnaryReactor* OpenRendezvous(grpc::CallbackServerContext* context,
                                           const v1::OpenRendezvousRequest* request,
                                           v1::Rendezvous* response) override;
  grpc::ServerUnaryReactor* Execute(grpc::CallbackServerContext* context,
                                    const v1::Command* request,
                                    v1::CommandResult* response) override;
  grpc::ServerUnaryReactor* Abort(grpc::CallbackServerContext* context,
                                  const v1::AbortRequest* request,
                                  v1::AbortResponse* response) override;
  grpc::ServerUnaryReactor* GetTrace(grpc::CallbackServerContext* context,
                                     const v1::WorkerTraceRequest* request,
                                     v1::EngineTrace* response) override;

  // Refuses new commands (UNAVAILABLE); true once none runs, false at the deadline.
  bool Close(absl::Time deadline);

 private:
  struct Target {
    std::shared_ptr<WorkerClient> client;
    absl::Duration left;  // what the caller waits
  };
  absl::StatusOr<Target> Find(const grpc::CallbackServerContext& context) const;
  void Run(const Target& target, v1::Command command, v1::CommandResult* response,
           grpc::ServerUnaryReactor* reactor);
  absl::Status Begin();
  void End();

  const std::string node_;
  const DataRoots roots_;
  RankTable* const ranks_;
  absl::Mutex mutex_;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  int running_ ABSL_GUARDED_BY(mutex_) = 0;
  TaskGroup tasks_;  // reads of file systems, which may take long
};

}  // namespace regroup

#endif  // DAEMON_AGENT_WORKER_PROXY_H_
