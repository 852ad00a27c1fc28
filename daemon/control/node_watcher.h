// Follows one joined node: asks its daemon again and again how its workers are, and tells the rank
// table.
#ifndef DAEMON_CONTROL_NODE_WATCHER_H_
#define DAEMON_CONTROL_NODE_WATCHER_H_

#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "daemon/control/node_table.h"
#include "daemon/node/rank_table.h"
#include "regroup/v1/agent.grpc.pb.h"

namespace regroup {

struct NodeWatcherOptions {
  absl::Duration interval = absl::Milliseconds(250);  // between two questions
  absl::Duration silence = absl::Seconds(4);          // after which a node is LOST
  absl::Duration kill = absl::Seconds(5);             // for the call that orders a kill
};

// Brings what the rank table knows of a rank up to date with what its node reports. `connect` makes
// the client of a process that is new; `attached` is told what a new process holds before it is
// READY.
void MirrorRank(const v1::RankReport& report, RankTable* ranks,
                const std::function<std::shared_ptr<WorkerClient>(const WorkerRef&)>& connect,
                const std::function<void(const WorkerRef&, const v1::WorkerState&)>& attached);

// One start of a node's daemon. Thread safe.
class NodeWatcher {
 public:
  struct Hooks {
    // LOST or READY again. On the watcher's thread, as all of these.
    std::function<void(v1::NodeState)> state;
    // As of MirrorRank: the process is new to this daemon, though it may be old.
    std::function<void(const WorkerRef&, const v1::WorkerState&)> attached;
  };

  // `ranks` outlives this and has the node's ranks.
  NodeWatcher(const NodeRecord& node, RankTable* ranks, const NodeWatcherOptions& options,
              Hooks hooks);
  ~NodeWatcher();  // its ranks stay as they are

  const NodeRecord& node() const { return node_; }

  // Whether the daemon still lives: waits until it answers a question that was asked after this
  // call, or is LOST.
  bool AwaitVerdict();

  // Orders the kill of a process there. Does not block.
  void Kill(const WorkerRef& ref, const std::string& reason);

 private:
  void Loop();
  absl::StatusOr<v1::NodeReport> Ask(absl::Duration timeout);
  void Take(const v1::NodeReport& report);
  void Lose(const std::string& why);
  bool stopped() const ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return stopped_; }

  const NodeRecord node_;
  RankTable* const ranks_;
  const NodeWatcherOptions options_;
  const Hooks hooks_;
  const std::shared_ptr<grpc::Channel> channel_;
  const std::shared_ptr<v1::Agent::Stub> stub_;
  absl::Mutex mutex_;
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  bool lost_ ABSL_GUARDED_BY(mutex_) = false;
  int64_t asked_ ABSL_GUARDED_BY(mutex_) = 0;     // questions
  int64_t answered_ ABSL_GUARDED_BY(mutex_) = 0;  // the last question that was answered
  std::thread thread_;                            // last: it uses the others
};

}  // namespace regroup

#endif  // DAEMON_CONTROL_NODE_WATCHER_H_
