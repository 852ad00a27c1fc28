// Workers as they serve on their sockets, several in one process, for tests.
#ifndef DAEMON_WORKER_WORKER_CLUSTER_H_
#define DAEMON_WORKER_WORKER_CLUSTER_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "daemon/worker/worker_server.h"
#include "grpcpp/client_context.h"
#include "regroup/v1/worker.grpc.pb.h"

namespace regroup {

// Plays the daemon for ranks 0..n-1. Its folder is gone when it is.
class WorkerCluster {
 public:
  using Results = std::map<int, absl::StatusOr<v1::CommandResult>>;  // by rank

  explicit WorkerCluster(int ranks);
  ~WorkerCluster();
  WorkerCluster(const WorkerCluster&) = delete;
  WorkerCluster& operator=(const WorkerCluster&) = delete;

  static uint64_t Incarnation(int rank) { return 1000 + static_cast<uint64_t>(rank); }
  static constexpr absl::Duration kDeadline = absl::Seconds(30);

  const std::string& folder() const { return folder_; }
  v1::Worker::Stub& stub(int rank) { return *stubs_[rank]; }

  // An mlp trainer on `ranks` with AdamW.
  static v1::EngineSpec TrainerSpec(const std::string& name, const std::vector<int>& ranks);

  // Writes a training file for it; returns its path.
  std::string WriteData();

  absl::StatusOr<v1::CommandResult> Execute(int rank, uint64_t uid, v1::Command command);

  // The same command on all of `ranks` at once, or what `command(rank)` says.
  Results ExecuteOn(const std::vector<int>& ranks, uint64_t uid, const v1::Command& command);
  Results ExecuteOn(const std::vector<int>& ranks, uint64_t uid,
                    const std::function<v1::Command(int rank)>& command);

  absl::StatusOr<v1::Rendezvous> OpenRendezvous(int rank, uint64_t uid);
  absl::StatusOr<v1::WorkerState> GetState(int rank);
  std::vector<v1::HeldEngine> Engines(int rank);  // of its state; fails the test if it has none
  absl::StatusOr<v1::EngineTrace> GetTrace(int rank, uint64_t uid);
  absl::Status Abort(int rank, uint64_t uid, const std::string& reason, bool move_only);

  // Whole stories. Each fails the test if a rank fails.
  void Create(uint64_t uid, const v1::EngineSpec& spec);
  std::vector<double> Train(uint64_t uid, const std::vector<int>& ranks, int steps);  // losses
  std::string Export(uint64_t uid, const std::vector<int>& ranks);  // the bytes of the weights

 private:
  std::string folder_;
  std::vector<std::unique_ptr<WorkerServer>> servers_;
  std::vector<std::unique_ptr<v1::Worker::Stub>> stubs_;
  int64_t attempts_ = 0;
  int exports_ = 0;
};

// The first error, OK if there is none.
absl::Status FirstError(const WorkerCluster::Results& results);

}  // namespace regroup

#endif  // DAEMON_WORKER_WORKER_CLUSTER_H_
