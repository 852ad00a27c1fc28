// The operations: those that run, and the last ones that ended.
#ifndef DAEMON_CONTROL_OPERATION_TABLE_H_
#define DAEMON_CONTROL_OPERATION_TABLE_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "absl/types/optional.h"
#include "daemon/control/cancellation.h"
#include "daemon/store/store.h"
#include "regroup/v1/control.pb.h"

namespace regroup {

// Thread safe. With a store, Start and Finish return once their row is on the disk; no lock is held
// over that. Nothing else blocks.
class OperationTable {
 public:
  static constexpr size_t kKept = 1000;  // finished ones; older ones are forgotten

  // With a store, which outlives this, operations are on disk from their start.
  explicit OperationTable(Store* store = nullptr) : store_(store) {}

  // Takes over the operations of an earlier start, before anything else: those that had not ended
  // failed with it. Errors: the store's.
  absl::Status Restore();

  // Called by each Start, on its thread, with the operation as it is then, before Start returns.
  // Set once, before the first.
  using StartHook = std::function<void(const v1::Operation&)>;
  void SetStartHook(StartHook hook) { start_hook_ = std::move(hook); }

  struct Plan {
    std::string kind;
    std::string engine;                          // name
    std::vector<uint64_t> engine_uids;           // all that it works on
    std::shared_ptr<Cancellation> cancellation;  // nullptr: it cannot be cancelled
  };

  // Enters a running operation; returns its id. After CancelAll it is asked to end at once.
  std::string Start(Plan plan);

  // Changes a running operation. `change` must leave id, done and version alone.
  void Update(const std::string& id, absl::FunctionRef<void(v1::Operation&)> change);

  // Ends it: phase "done" if `outcome` is OK, else its error.
  void Finish(const std::string& id, const absl::Status& outcome);

  absl::StatusOr<v1::Operation> Get(const std::string& id) const;  // NOT_FOUND
  std::vector<v1::Operation> List() const;                         // newest last
  std::vector<v1::Operation> Running() const;

  // Asks it to end. Errors: NOT_FOUND; FAILED_PRECONDITION (done, or of a kind that cannot be
  // cancelled).
  absl::StatusOr<v1::Operation> Cancel(const std::string& id, const absl::Status& why);
  // Asks all that work on the engine to end; those that cannot be cancelled go on.
  void CancelOn(uint64_t engine_uid, const absl::Status& why);
  void CancelAll(const absl::Status& why);  // and all to come

  // Follows one operation: returns it if it is newer than `after` (a version; 0 = any), else
  // nullopt, and then `changed` is called once, with the next version, on the thread that changes
  // it; it must not block. *watch is what StopWatch takes. Errors: NOT_FOUND.
  using Watcher = std::function<void(const v1::Operation&)>;
  absl::StatusOr<absl::optional<v1::Operation>> Watch(const std::string& id, int64_t after,
                                                      Watcher changed, int64_t* watch);
  // True if `changed` will not be called; false if it was or is about to be.
  bool StopWatch(const std::string& id, int64_t watch);

 private:
  struct Entry {
    v1::Operation operation;
    Plan plan;
    absl::Time started;
    std::map<int64_t, Watcher> watchers;
  };

  static v1::Operation Snapshot(const Entry& entry);
  absl::Status NotFound(const std::string& id) const;
  // Bumps the version; returns the watchers to call once the lock is released.
  static std::map<int64_t, Watcher> Changed(Entry& entry);

  // Writes the row; what cannot be written is only said: the operation goes on.
  void Save(int64_t number, const v1::Operation& operation, int64_t forget) const;

  Store* const store_;
  StartHook start_hook_;
  mutable absl::Mutex mutex_;
  absl::Status closing_ ABSL_GUARDED_BY(mutex_);  // why all are cancelled; OK: they are not
  int64_t last_number_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t last_watch_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<int64_t, Entry> entries_ ABSL_GUARDED_BY(mutex_);  // by number
  std::deque<int64_t> finished_ ABSL_GUARDED_BY(mutex_);      // oldest first
};

}  // namespace regroup

#endif  // DAEMON_CONTROL_OPERATION_TABLE_H_
