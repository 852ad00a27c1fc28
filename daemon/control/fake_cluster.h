// A control plane over scripted workers in this process, for tests. The workers speak the real
// protocol over unix sockets, but compute nothing.
#ifndef DAEMON_CONTROL_FAKE_CLUSTER_H_
#define DAEMON_CONTROL_FAKE_CLUSTER_H_

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "daemon/control/control.h"
#include "daemon/node/private_dir.h"
#include "daemon/node/rank_table.h"
#include "grpcpp/server.h"
#include "regroup/v1/worker.grpc.pb.h"

namespace regroup {

inline constexpr absl::Duration kPatience = absl::Seconds(30);

class FakeCluster;

// One incarnation of one rank.
class FakeWorker final : public v1::Worker::Service {
 public:
  FakeWorker(FakeCluster* cluster, WorkerRef ref) : cluster_(cluster), ref_(ref) {}

  grpc::Status GetState(grpc::ServerContext*, const v1::WorkerStateRequest*,
                        v1::WorkerState* state) override;
  grpc::Status OpenRendezvous(grpc::ServerContext*, const v1::OpenRendezvousRequest* request,
                              v1::Rendezvous* response) override;
  grpc::Status Execute(grpc::ServerContext*, const v1::Command* command,
                       v1::CommandResult* result) override;
  grpc::Status Abort(grpc::ServerContext*, const v1::AbortRequest* request,
                     v1::AbortResponse*) override;
  grpc::Status GetTrace(grpc::ServerContext*, const v1::WorkerTraceRequest* request,
                        v1::EngineTrace* trace) override;

  int rank() const { return ref_.rank; }

  // Waits like a collective: until the engine is aborted here (CANCELLED, "aborted: WHY" or "move
  // aborted: WHY"), or this worker dies.
  absl::Status AwaitAbort(uint64_t uid);
  // Waits like a command that nothing but a kill ends.
  absl::Status AwaitDeath();

  void Die();
  std::set<uint64_t> held();

 private:
  void Apply(const v1::Command& command, v1::CommandResult* result);

  FakeCluster* const cluster_;
  const WorkerRef ref_;
  absl::Mutex mutex_;
  bool dead_ ABSL_GUARDED_BY(mutex_) = false;
  int running_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<uint64_t, std::string> aborted_ ABSL_GUARDED_BY(mutex_);
  std::set<uint64_t> broken_ ABSL_GUARDED_BY(mutex_);  // aborted, and not only their move
  std::map<uint64_t, v1::EngineSpec> held_ ABSL_GUARDED_BY(mutex_);
  std::map<uint64_t, v1::PrepareMove> moves_ ABSL_GUARDED_BY(mutex_);
  std::map<uint64_t, int64_t> steps_ ABSL_GUARDED_BY(mutex_);
  std::map<int64_t, int64_t> rows_left_ ABSL_GUARDED_BY(mutex_);  // by row: tokens to come
};

class FakeCluster {
 public:
  // What a worker does instead of, or before, the usual: an error is the answer. May block.
  using Script = std::function<absl::Status(FakeWorker& worker, const v1::Command& command)>;

  explicit FakeCluster(int ranks, const std::function<void(OperationTiming&)>& change = nullptr);
  ~FakeCluster();

  Control& control() { return *control_; }
  RankTable& ranks() { return table_; }
  void SetScript(Script script);
  // Changes what a worker answers.
  using Edit = std::function<void(int rank, v1::CommandResult* result)>;
  void SetEdit(Edit edit);

  // From now on the rank answers OpenRendezvous only once it is dead.
  void HangRendezvousOn(int rank);

  // As SIGKILL would; the rank comes back with Restart.
  void Kill(int rank);
  void Restart(int rank);
  void KillLater(int rank);  // for callers that must not block
  std::set<uint64_t> Held(int rank);

  // What was asked of workers, in order: "1 TrainStep".
  std::vector<std::string> Log();
  int Count(const std::string& entry);
  bool AwaitCount(const std::string& entry, int count);

  // True if two commands ever ran on one rank at the same time.
  bool overlapped();

  // Never the same twice.
  static std::string NewRequestId();
  // Requests with the least that is needed, and a new request_id.
  static v1::CreateEngineRequest CreateRequest(const std::string& name,
                                               const std::vector<int>& ranks,
                                               v1::Role role = v1::ROLE_TRAIN);
  v1::TrainRequest TrainRequest(const std::string& name, int64_t steps);

  // Waits for the end of an operation that was accepted.
  v1::Operation Finish(const absl::StatusOr<v1::Operation>& accepted);
  void MustCreate(const std::string& name, const std::vector<int>& ranks,
                  v1::Role role = v1::ROLE_TRAIN);
  v1::Engine Describe(const std::string& name);

 private:
  friend class FakeWorker;
  struct Slot {
    std::unique_ptr<FakeWorker> worker;
    std::unique_ptr<grpc::Server> server;
    int starts = 0;
  };

  absl::Status RunScript(FakeWorker& worker, const v1::Command& command);
  void RunEdit(int rank, v1::CommandResult* result);
  bool RendezvousHangs(int rank);
  void Note(const std::string& entry);
  void NoteOverlap();

  const int ranks_;
  const PrivateDir folder_;
  RankTable table_;
  absl::Mutex mutex_;
  Script script_ ABSL_GUARDED_BY(mutex_);
  Edit edit_ ABSL_GUARDED_BY(mutex_);
  std::set<int> hang_rendezvous_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::string> log_ ABSL_GUARDED_BY(mutex_);
  bool overlapped_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> killers_ ABSL_GUARDED_BY(mutex_);
  std::string data_file_;
  absl::Mutex slots_mutex_;
  std::vector<Slot> slots_ ABSL_GUARDED_BY(slots_mutex_);
  std::unique_ptr<Control> control_;
};

}  // namespace regroup

#endif  // DAEMON_CONTROL_FAKE_CLUSTER_H_
