// The nodes that joined this daemon: takes them in, follows them, and reaches their workers.
#ifndef DAEMON_CONTROL_CLUSTER_H_
#define DAEMON_CONTROL_CLUSTER_H_

#include <map>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "daemon/control/control.h"
#include "daemon/control/node_watcher.h"
#include "daemon/node/rank_table.h"
#include "regroup/v1/agent.pb.h"

namespace regroup {

// Thread safe.
class Cluster {
 public:
  // Both outlive this.
  Cluster(Control* control, RankTable* ranks, const NodeWatcherOptions& options = {})
      : control_(control), ranks_(ranks), options_(options) {}

  // What it means, and its errors, stands in agent.proto. Blocks for some seconds at most.
  absl::StatusOr<v1::JoinResponse> Join(const v1::JoinRequest& request);

  // Kills a worker of another node. Does not block.
  void Kill(const WorkerRef& ref, const std::string& reason);

  // Runs `task`, which may block, on a thread of its own.
  absl::Status StartTask(std::function<void()> task) {
    return control_->StartTask(std::move(task));
  }

 private:
  std::shared_ptr<NodeWatcher> Find(const std::string& name);

  Control* const control_;
  RankTable* const ranks_;
  const NodeWatcherOptions options_;
  absl::Mutex mutex_;
  std::map<std::string, std::shared_ptr<NodeWatcher>> watchers_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace regroup

#endif  // DAEMON_CONTROL_CLUSTER_H_
