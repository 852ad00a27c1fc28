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
  // Both outlive this. `meeting` is the numeric address at which workers of other nodes reach those
  // of this one; "" = any. `id` is the store's; 0 = none.
  Cluster(Control* control, RankTable* ranks, const NodeWatcherOptions& options = {},
          const std::string& meeting = "", uint64_t id = 0)
      : control_(control), ranks_(ranks), options_(options), meeting_(meeting), id_(id) {}

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
  absl::Status CheckFamily(const v1::JoinRequest& request) const;

  Control* const control_;
  RankTable* const ranks_;
  const NodeWatcherOptions options_;
  const std::string meeting_;
  const uint64_t id_;
  absl::Mutex mutex_;
  std::map<std::string, std::shared_ptr<NodeWatcher>> watchers_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace regroup

#endif  // DAEMON_CONTROL_CLUSTER_H_
