// Calls to one worker process: one incarnation of one rank.
#ifndef DAEMON_NODE_WORKER_CLIENT_H_
#define DAEMON_NODE_WORKER_CLIENT_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "grpcpp/channel.h"
#include "regroup/v1/worker.grpc.pb.h"

namespace regroup {

// One process start of a rank. Another start of the same rank is another worker: it holds nothing
// of what the earlier one held.
struct WorkerRef {
  int rank = 0;
  uint64_t incarnation = 0;
};

inline bool operator==(const WorkerRef& a, const WorkerRef& b) {
  return a.rank == b.rank && a.incarnation == b.incarnation;
}

// The metadata by which a call to another daemon names its worker.
inline constexpr char kRankKey[] = "regroup-rank";
inline constexpr char kIncarnationKey[] = "regroup-incarnation";

// UNAVAILABLE with reason RANK_LOST; `how` is the message: "rank 2 (pid 123) was killed by
// SIGKILL".
absl::Status RankLostError(int rank, const std::string& how);

// Thread safe. Calls return at once; `done` runs once, on a thread of gRPC, on the calling one, or
// on the one that calls Lost or EndUndecided: it must not block, nor take a lock that these hold.
// All calls carry the incarnation.
//
// Errors beyond the worker's own: UNAVAILABLE with RANK_LOST, saying how the process ended;
// DEADLINE_EXCEEDED. A call whose connection breaks waits for the word on how the process ended
// (Lost), at most kVerdictWait, or what MakeRemote was given.
class WorkerClient : public std::enable_shared_from_this<WorkerClient> {
 public:
  template <typename T>
  using Done = std::function<void(absl::StatusOr<T>)>;

  static constexpr absl::Duration kVerdictWait = absl::Seconds(2);

  // Connects when the first call is made; the socket need not exist yet.
  static std::shared_ptr<WorkerClient> Make(WorkerRef ref, const std::string& socket_path);

  // By way of the daemon of the worker's node. Not only a worker's end breaks such a connection:
  // `verdict_wait` is as long as it takes to know that a node is lost.
  static std::shared_ptr<WorkerClient> MakeRemote(WorkerRef ref,
                                                  const std::shared_ptr<grpc::Channel>& channel,
                                                  absl::Duration verdict_wait);

  const WorkerRef& ref() const { return ref_; }

  // Fills in command.incarnation.
  void Execute(v1::Command command, absl::Duration timeout, Done<v1::CommandResult> done);
  void OpenRendezvous(v1::OpenRendezvousRequest request, absl::Duration timeout,
                      Done<v1::Rendezvous> done);
  void Abort(v1::AbortRequest request, absl::Duration timeout, Done<v1::AbortResponse> done);
  void GetTrace(uint64_t engine_uid, absl::Duration timeout, Done<v1::EngineTrace> done);

  // Waits for the connection, so that it can be used to see when a worker is up.
  void GetState(absl::Duration timeout, Done<v1::WorkerState> done);

  // The process ended as `how` says: ends all calls, present and future, with RankLostError.
  void Lost(const std::string& how);

  // Ends calls whose connection broke more than the verdict's wait before `now`. Called now and
  // then.
  void EndUndecided(absl::Time now);

 private:
  struct Undecided {
    absl::Time since;
    std::function<void(absl::Status)> finish;
    absl::Status broken;  // what the connection said
  };

  WorkerClient(WorkerRef ref, const std::shared_ptr<grpc::Channel>& channel, bool remote,
               absl::Duration verdict_wait);

  // Runs `start(context, request, response, callback)`, one of the stub's asynchronous methods.
  template <typename Request, typename Response, typename Start>
  void Call(Request request, absl::Duration timeout, bool wait_for_ready, Start start,
            Done<Response> done);

  // True if the call may start; false, and *lost says why, if the worker is lost.
  bool Begin(std::shared_ptr<grpc::ClientContext> context, absl::Status* lost);
  // Passes the call's outcome on, at once or when it is known how the process ended.
  void End(const std::shared_ptr<grpc::ClientContext>& context, absl::Status status,
           std::function<void(absl::Status)> finish);

  const WorkerRef ref_;
  const std::unique_ptr<v1::Worker::Stub> stub_;
  const bool remote_;
  const absl::Duration verdict_wait_;
  absl::Mutex mutex_;
  bool lost_ ABSL_GUARDED_BY(mutex_) = false;
  std::string how_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_set<std::shared_ptr<grpc::ClientContext>> running_ ABSL_GUARDED_BY(mutex_);
  std::vector<Undecided> undecided_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace regroup

#endif  // DAEMON_NODE_WORKER_CLIENT_H_
