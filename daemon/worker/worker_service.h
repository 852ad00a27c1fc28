// The Worker service: puts commands on the executor, answers everything else at once.
#ifndef DAEMON_WORKER_WORKER_SERVICE_H_
#define DAEMON_WORKER_WORKER_SERVICE_H_

#include <atomic>
#include <cstdint>
#include <map>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "daemon/worker/commands.h"
#include "daemon/worker/engine_table.h"
#include "daemon/worker/executor.h"
#include "grpcpp/server_context.h"
#include "regroup/v1/worker.grpc.pb.h"

namespace regroup {

// Thread safe. Everything given outlives the service; the server is shut down before them.
class WorkerService final : public v1::Worker::CallbackService {
 public:
  WorkerService(WorkerIdentity identity, EngineTable* table, Commands* commands,
                Executor* executor);

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

 private:
  absl::Status CheckIncarnation(uint64_t incarnation) const;
  absl::Status Open(const v1::OpenRendezvousRequest& request, v1::Rendezvous* response);
  void FillState(v1::WorkerState* state) const;
  void CountCommand(uint64_t uid, int change);
  absl::Status FillTrace(uint64_t uid, v1::EngineTrace* trace) const;

  const WorkerIdentity identity_;
  EngineTable* const table_;
  Commands* const commands_;
  Executor* const executor_;
  std::atomic<int64_t> commands_done_{0};
  mutable absl::Mutex mutex_;
  std::map<uint64_t, int> unended_ ABSL_GUARDED_BY(mutex_);  // by engine: those not over
};

}  // namespace regroup

#endif  // DAEMON_WORKER_WORKER_SERVICE_H_
