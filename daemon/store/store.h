// The primary's state on disk: one SQLite file.
#ifndef DAEMON_STORE_STORE_H_
#define DAEMON_STORE_STORE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "regroup/v1/control.pb.h"
#include "regroup/v1/store.pb.h"

struct sqlite3;

namespace regroup {

struct StoredNode {
  std::string name;
  std::string address;
  int first_rank = 0;
  int ranks = 0;
  bool self = false;  // the primary itself
};

struct StoredRequest {
  std::string id;
  int64_t accepted_micros = 0;  // since the Unix epoch
  uint64_t digest = 0;          // of the request
  v1::Operation answer;
};

// Thread safe. Each write is on the disk when it returns (WAL, synchronous=FULL): a row that says
// what was decided is the decision. A write that fails changes nothing; errors name the file:
// RESOURCE_EXHAUSTED (the disk is full), UNAVAILABLE (after Freeze), INTERNAL.
class Store {
 public:
  static constexpr int kSchema = 1;

  // Opens FOLDER/regroup.db, or makes it. A file that is damaged, not a state store, or of a newer
  // version is refused by name and left as it is (FAILED_PRECONDITION, DATA_LOSS).
  static absl::StatusOr<std::unique_ptr<Store>> Open(const std::string& folder);
  ~Store();
  Store(const Store&) = delete;
  Store& operator=(const Store&) = delete;

  // Random, of this file for good; never 0.
  absl::StatusOr<uint64_t> ClusterId() const;

  absl::StatusOr<std::vector<StoredNode>> Nodes() const;
  absl::Status PutNode(const StoredNode& node);

  absl::StatusOr<std::vector<v1::StoredEngine>> Engines() const;  // by uid
  absl::Status PutEngine(const v1::StoredEngine& engine);
  absl::Status RemoveEngine(uint64_t uid);
  // The highest uid that was ever put, deleted engines' included; 0 if there was none.
  absl::StatusOr<uint64_t> LastUid() const;

  absl::StatusOr<std::vector<v1::Operation>> Operations() const;  // oldest first
  // `number` orders them; rows of numbers up to `forget` are removed.
  absl::Status PutOperation(int64_t number, const v1::Operation& operation, int64_t forget);

  absl::StatusOr<std::vector<StoredRequest>> Requests() const;  // oldest first
  // Removes those that were accepted before `forget_before_micros`, too.
  absl::Status PutRequest(const StoredRequest& request, int64_t forget_before_micros);

  // From now on every write fails, as on a full disk.
  void RefuseWritesForTest();

  // From now on every write is UNAVAILABLE and changes nothing: what a daemon that stops does to
  // its engines is no decision. Writes that returned before are on the disk.
  void Freeze();

  const std::string& path() const { return path_; }

 private:
  class Statement;
  Store(std::string path, sqlite3* database) : path_(std::move(path)), database_(database) {}

  // Of the call to SQLite before: to be asked before its statement ends.
  absl::Status Error(const std::string& what) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status FrozenError() const;
  absl::Status Run(const char* sql) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status Check() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status MakeTables() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<int64_t> ReadNumber(const char* sql) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::string path_;
  mutable absl::Mutex mutex_;
  sqlite3* const database_;
  bool frozen_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace regroup

#endif  // DAEMON_STORE_STORE_H_
