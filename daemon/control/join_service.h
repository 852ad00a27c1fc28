// The Agent service of a primary: nodes join by it.
#ifndef DAEMON_CONTROL_JOIN_SERVICE_H_
#define DAEMON_CONTROL_JOIN_SERVICE_H_

#include "daemon/control/cluster.h"
#include "regroup/v1/agent.grpc.pb.h"

namespace regroup {

// Thread safe.
class JoinService final : public v1::Agent::CallbackService {
 public:
  // `cluster` outlives this.
  explicit JoinService(Cluster* cluster) : cluster_(cluster) {}

  grpc::ServerUnaryReactor* Join(grpc::CallbackServerContext* context,
                                 const v1::JoinRequest* request,
                                 v1::JoinResponse* response) override;
  grpc::ServerUnaryReactor* GetNode(grpc::CallbackServerContext* context,
                                    const v1::GetNodeRequest* request,
                                    v1::NodeReport* response) override;
  grpc::ServerUnaryReactor* KillWorker(grpc::CallbackServerContext* context,
                                       const v1::KillWorkerRequest* request,
                                       v1::KillWorkerResponse* response) override;

 private:
  Cluster* const cluster_;
};

}  // namespace regroup

#endif  // DAEMON_CONTROL_JOIN_SERVICE_H_
