// The engines, by name: what they are, where they lie and how they are. The only place that changes
// that.
#ifndef DAEMON_CONTROL_ENGINE_REGISTRY_H_
#define DAEMON_CONTROL_ENGINE_REGISTRY_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/optional.h"
#include "daemon/control/engine_state.h"
#include "daemon/node/worker_client.h"
#include "daemon/store/store.h"
#include "regroup/v1/control.pb.h"

namespace regroup {

struct EngineRecord {
  uint64_t uid = 0;     // never used twice
  v1::EngineSpec spec;  // complete; spec.layout is the present one
  v1::EngineState state = v1::ENGINE_STATE_PLANNED;
  absl::Status failure;            // why it is FAILED, or (restored) what it waits for
  bool restored = false;           // of an earlier start; FORMING until its ranks are found
  bool was_moving = false;         // restored in the middle of a move that was not decided
  std::vector<WorkerRef> members;  // the processes that hold it, in the layout's order
  int64_t generation = 0;
  int64_t step = 0;
  int64_t data_position = 0;
  int64_t weights_version = 0;
  int64_t syncs = 0;        // decided ones into it
  std::string fingerprint;  // of the model
  int64_t parameters = 0;
  int64_t units = 0;
  std::vector<v1::PartitionGroup> groups;
  std::string activity;  // what runs on it, "" = idle
  int64_t attempts = 0;  // to form groups for it
};

// Whether the ranks of the layout hold (or are about to hold) the engine.
inline bool HoldsRanks(const EngineRecord& engine) {
  return engine.state != v1::ENGINE_STATE_FAILED && engine.state != v1::ENGINE_STATE_GONE;
}

// Everything but groups and memory is as `engine list` shows it. FAILED carries the reason.
v1::Engine ToProto(const EngineRecord& record);

// Thread safe; holds no lock while anything runs, so lists answer whatever the engines do.
class EngineRegistry {
 public:
  // With a store, which outlives this, each change of state is on disk before anybody sees it.
  explicit EngineRegistry(Store* store = nullptr);

  // Takes over the engines of an earlier start, before anything else: those that were READY or
  // MOVING are restored, FAILED ones stay, unfinished ones are gone. Errors: the store's.
  absl::Status Restore();

  // Reserves spec.name for a new PLANNED engine; returns its uid. Errors: ALREADY_EXISTS.
  absl::StatusOr<uint64_t> Add(const v1::EngineSpec& spec);

  // Errors: NOT_FOUND, naming the engines that there are.
  absl::StatusOr<EngineRecord> Find(const std::string& name) const;

  absl::optional<EngineRecord> Get(uint64_t uid) const;  // nullopt: GONE
  std::vector<EngineRecord> List() const;                // in the order of creation

  // The one setter of states: applies Next(state, event) and then `change`. An engine that is GONE
  // is removed. Errors: FAILED_PRECONDITION if the event means nothing in the engine's state (then
  // nothing changes), NOT_FOUND if it is gone; for an event that somebody waits for (kForm,
  // kFormed, kMove, kMoved; kDelete once it is frozen) the store's, and nothing changes.
  using Change = absl::FunctionRef<void(EngineRecord&)>;
  absl::Status Apply(uint64_t uid, EngineEvent event, Change change);
  absl::Status Apply(uint64_t uid, EngineEvent event) {
    return Apply(uid, event, [](EngineRecord&) {});
  }

  // Changes what is not the state, as a decision: it is on disk, or an error and nothing changes.
  // Errors: NOT_FOUND, the failure of an engine that is not READY any more, the store's.
  absl::Status Decide(uint64_t uid, Change change);

  // Changes what is not the state, in memory only. Nothing happens if the engine is gone.
  void Update(uint64_t uid, Change change);

 private:
  absl::Status Save(const EngineRecord& record) ABSL_EXCLUSIVE_LOCKS_REQUIRED(change_mutex_);

  Store* const store_;
  absl::Mutex change_mutex_ ABSL_ACQUIRED_BEFORE(mutex_);  // one change at a time, its write too
  mutable absl::Mutex mutex_;                              // never held over a write
  uint64_t next_uid_ ABSL_GUARDED_BY(mutex_);
  std::map<uint64_t, EngineRecord> records_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace regroup

#endif  // DAEMON_CONTROL_ENGINE_REGISTRY_H_
