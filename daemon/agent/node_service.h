// The Agent service of a daemon that joined another one: tells the primary how its workers are.
#ifndef DAEMON_AGENT_NODE_SERVICE_H_
#define DAEMON_AGENT_NODE_SERVICE_H_

#include <cstdint>
#include <functional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "daemon/node/rank_table.h"
#include "grpcpp/generic/async_generic_service.h"
#include "regroup/v1/agent.grpc.pb.h"

namespace regroup {

struct NodeIdentity {
  std::string name;
  uint64_t incarnation = 0;  // of this daemon
  std::string primary;       // HOST:PORT, as --join has it
};

// Thread safe.
class NodeService final : public v1::Agent::CallbackService {
 public:
  using Killer = std::function<void(const WorkerRef& ref, const std::string& reason)>;

  // `ranks` outlives this. `killer` does not block.
  NodeService(NodeIdentity identity, RankTable* ranks, Killer killer);

  grpc::ServerUnaryReactor* Join(grpc::CallbackServerContext* context,
                                 const v1::JoinRequest* request,
                                 v1::JoinResponse* response) override;
  grpc::ServerUnaryReactor* GetNode(grpc::CallbackServerContext* context,
                                    const v1::GetNodeRequest* request,
                                    v1::NodeReport* response) override;
  grpc::ServerUnaryReactor* KillWorker(grpc::CallbackServerContext* context,
                                       const v1::KillWorkerRequest* request,
                                       v1::KillWorkerResponse* response) override;

  // For how long no primary has asked, by SteadyNow.
  absl::Duration Unasked() const;

 private:
  const NodeIdentity identity_;
  RankTable* const ranks_;
  const Killer killer_;
  mutable absl::Mutex mutex_;
  absl::Time asked_ ABSL_GUARDED_BY(mutex_);
};

// Answers what clients ask of a daemon that is no primary: FAILED_PRECONDITION, with the primary's
// address. Thread safe.
class NoControl final : public grpc::CallbackGenericService {
 public:
  explicit NoControl(NodeIdentity identity) : identity_(std::move(identity)) {}

 private:
  grpc::ServerGenericBidiReactor* CreateReactor(
      grpc::GenericCallbackServerContext* context) override;

  const NodeIdentity identity_;
};

}  // namespace regroup

#endif  // DAEMON_AGENT_NODE_SERVICE_H_
