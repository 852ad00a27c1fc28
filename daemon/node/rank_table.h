// What is known of each rank of this cluster: the worker that serves it now, and how its last one
// ended.
#ifndef DAEMON_NODE_RANK_TABLE_H_
#define DAEMON_NODE_RANK_TABLE_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "absl/types/optional.h"
#include "absl/types/span.h"
#include "daemon/node/worker_client.h"
#include "regroup/v1/status.pb.h"

namespace regroup {

struct RankInfo {
  int rank = 0;
  v1::RankState state = v1::RANK_STATE_STARTING;
  int pid = 0;  // of the process that serves the rank, 0 while it is LOST
  uint64_t incarnation = 0;
  std::string error;  // how the previous process ended, "" if none did
  int64_t rss_bytes = 0;
  absl::Time ended = absl::InfinitePast();  // when the previous process did
};

// Thread safe; nothing here blocks but what is called Await.
class RankTable {
 public:
  explicit RankTable(int ranks);

  int size() const { return static_cast<int>(slots_.size()); }

  // Who supervises the workers reports here, in this order for each process.
  void Started(std::shared_ptr<WorkerClient> client, int pid);
  void Ready(const WorkerRef& ref);
  // What the worker said; ignored if it has said something newer before.
  void Answered(const WorkerRef& ref, v1::WorkerState state);
  // `how` is the one line that ends calls and fails engines; `error` may say more. Tells the
  // listener, then ends the worker's calls.
  void Lost(const WorkerRef& ref, const std::string& how, const std::string& error);

  // Called by Lost, on its thread, before any call to the worker ends. Set once, before the first
  // start.
  using LostListener = std::function<void(const WorkerRef& ref, const std::string& how)>;
  void SetLostListener(LostListener listener);

  std::vector<RankInfo> List() const;

  // The worker's connection. UNAVAILABLE (RANK_LOST, saying how it ended) if that process is gone.
  absl::StatusOr<std::shared_ptr<WorkerClient>> Find(const WorkerRef& ref) const;
  bool IsAlive(const WorkerRef& ref) const { return Find(ref).ok(); }

  // Waits until that process is lost; false at the deadline.
  bool AwaitLost(const WorkerRef& ref, absl::Time deadline) const;

  // Waits until all of `ranks` are READY and returns their workers, in that order. Errors:
  // NOT_FOUND; UNAVAILABLE (at the deadline), naming a rank that is not ready and why; `stop()`'s
  // error, which is asked about ten times a second.
  absl::StatusOr<std::vector<WorkerRef>> AwaitReady(absl::Span<const int> ranks,
                                                    absl::Time deadline,
                                                    absl::FunctionRef<absl::Status()> stop) const;

  // What the worker holds of an engine, as of its last answer; nullopt if nothing.
  absl::optional<v1::HeldEngine> Held(const WorkerRef& ref, uint64_t engine_uid) const;

  // Calls EndUndecided of all workers.
  void EndUndecided(absl::Time now);

 private:
  struct Slot {
    RankInfo info;
    std::string how;  // the last process ended
    std::shared_ptr<WorkerClient> client;
    v1::WorkerState state;
  };

  // The slot, if `ref` is what serves its rank now; else nullptr.
  Slot* Current(const WorkerRef& ref) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  const Slot* Current(const WorkerRef& ref) const ABSL_SHARED_LOCKS_REQUIRED(mutex_);

  mutable absl::Mutex mutex_;
  std::vector<Slot> slots_ ABSL_GUARDED_BY(mutex_);  // never resized
  LostListener listener_;
};

}  // namespace regroup

#endif  // DAEMON_NODE_RANK_TABLE_H_
