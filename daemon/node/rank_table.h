// What is known of each rank of this cluster (of a daemon that joined another one: of its own
// ranks): the worker that serves it now, and how its last one ended.
#ifndef DAEMON_NODE_RANK_TABLE_H_
#define DAEMON_NODE_RANK_TABLE_H_

#include <functional>
#include <map>
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
  std::string node;  // "" = this daemon's
  v1::RankState state = v1::RANK_STATE_STARTING;
  int pid = 0;  // of the process that serves the rank, 0 while it is LOST
  uint64_t incarnation = 0;
  std::string how;    // the previous process ended, in one line; "" if none did
  std::string error;  // the same, with what it wrote last
  int64_t rss_bytes = 0;
  absl::Time ended = absl::InfinitePast();  // when the previous process did
};

// Thread safe; nothing here blocks but what is called Await.
class RankTable {
 public:
  explicit RankTable(int ranks);  // 0 to ranks - 1, of this daemon

  int size() const;  // how many ranks there are: their numbers may have gaps

  // Adds `count` ranks of `node`; those that there are already stay as they are.
  void AddRanks(int first, int count, const std::string& node,
                v1::RankState state = v1::RANK_STATE_STARTING);

  // "" = this daemon's, or no such rank.
  std::string NodeOf(int rank) const;

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

  // The worker's connection. UNAVAILABLE (RANK_LOST, saying how it ended) if that process is gone,
  // or after EndCalls.
  absl::StatusOr<std::shared_ptr<WorkerClient>> Find(const WorkerRef& ref) const;
  bool IsAlive(const WorkerRef& ref) const { return Find(ref).ok(); }
  bool IsReady(const WorkerRef& ref) const;

  // Waits until that process is lost; false at the deadline.
  bool AwaitLost(const WorkerRef& ref, absl::Time deadline) const;

  // Waits until all of `ranks` are READY and returns their workers, in that order. Errors:
  // NOT_FOUND (no such rank, saying which there are); UNAVAILABLE (at the deadline), naming a rank
  // that is not ready and why; `stop()`'s error, which is asked about ten times a second.
  absl::StatusOr<std::vector<WorkerRef>> AwaitReady(absl::Span<const int> ranks,
                                                    absl::Time deadline,
                                                    absl::FunctionRef<absl::Status()> stop) const;

  // The process that serves the rank now, ready or not; nullopt if there is none.
  absl::optional<WorkerRef> Serving(int rank) const;

  // The worker's last answer; empty if it gave none, or is gone.
  v1::WorkerState StateOf(const WorkerRef& ref) const;

  // What the worker holds of an engine, as of its last answer; nullopt if nothing.
  absl::optional<v1::HeldEngine> Held(const WorkerRef& ref, uint64_t engine_uid) const;

  // Ends the calls to all workers that are left, which stay what they are: this daemon stops. Find
  // finds nobody any more, so that nobody is told, or killed, because of a call that ended so.
  void EndCalls(const std::string& why);

  // Calls EndUndecided of all workers.
  void EndUndecided(absl::Time now);

 private:
  struct Slot {
    RankInfo info;
    std::shared_ptr<WorkerClient> client;
    v1::WorkerState state;
  };

  // The slot, if `ref` is what serves its rank now; else nullptr.
  Slot* Current(const WorkerRef& ref) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  const Slot* Current(const WorkerRef& ref) const ABSL_SHARED_LOCKS_REQUIRED(mutex_);

  std::vector<std::shared_ptr<WorkerClient>> Clients() const;

  mutable absl::Mutex mutex_;
  std::map<int, Slot> slots_ ABSL_GUARDED_BY(mutex_);  // by rank
  std::string ended_ ABSL_GUARDED_BY(mutex_);          // EndCalls' reason; "": not called
  LostListener listener_;
};

}  // namespace regroup

#endif  // DAEMON_NODE_RANK_TABLE_H_
