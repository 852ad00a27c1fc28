// The nodes of the cluster, and which ranks each has.
#ifndef DAEMON_CONTROL_NODE_TABLE_H_
#define DAEMON_CONTROL_NODE_TABLE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "absl/types/optional.h"
#include "absl/types/span.h"
#include "daemon/store/store.h"
#include "regroup/v1/status.pb.h"

namespace regroup {

struct NodeRecord {
  std::string name;
  std::string address;  // HOST:PORT
  int first_rank = 0;
  int ranks = 0;
  uint64_t incarnation = 0;  // of its daemon
  v1::NodeState state = v1::NODE_STATE_READY;
};

// What a node that joins asks for.
struct NodeClaim {
  std::string name;
  int ranks = 0;
  absl::optional<int> first_rank;  // nullopt: after all ranks that there are
};

// The first rank of the node: the one that it had, if it is known; else as claimed. Pure. Errors:
// INVALID_ARGUMENT (a rank beyond kMaxRank), FAILED_PRECONDITION (it had other ranks),
// ALREADY_EXISTS (another node has one of them). Each names flag, value and what is allowed.
absl::StatusOr<int> PlaceNode(absl::Span<const NodeRecord> known, const NodeClaim& claim);

// Thread safe. The first record is the primary's own.
class NodeTable {
 public:
  // With a store, which outlives this, nodes keep their ranks over a restart.
  explicit NodeTable(const NodeRecord& self, Store* store = nullptr)
      : store_(store), nodes_({self}) {}

  // Takes over the other nodes of an earlier start, LOST until they join again. Errors: the
  // store's; if there are others, ALREADY_EXISTS (one of them has this node's name, or one of its
  // ranks), FAILED_PRECONDITION (this node had other ranks before).
  absl::Status Restore();

  std::vector<NodeRecord> List() const;
  absl::optional<NodeRecord> Find(const std::string& name) const;

  // PlaceNode, and then the node has its ranks: a known one keeps them, and gets the address and
  // incarnation of its new daemon. Errors: PlaceNode's.
  absl::StatusOr<NodeRecord> Put(const NodeClaim& claim, const std::string& address,
                                 uint64_t incarnation);

  void SetState(const std::string& name, v1::NodeState state);
  void SetOwnAddress(const std::string& address);

 private:
  Store* const store_;
  mutable absl::Mutex mutex_;
  std::vector<NodeRecord> nodes_ ABSL_GUARDED_BY(mutex_);
};

// Whether a node that is asked again and again is silent for too long. Time in which nobody looked
// is the watcher's own pause, not the node's silence. Not thread safe.
class Hearing {
 public:
  Hearing(absl::Duration limit, absl::Time now) : limit_(limit), heard_(now), looked_(now) {}

  void Heard(absl::Time now) { heard_ = looked_ = now; }
  // To be asked more often than every `kLongestLook`.
  bool Silent(absl::Time now);
  absl::Duration limit() const { return limit_; }

  static constexpr absl::Duration kLongestLook = absl::Milliseconds(1500);

 private:
  const absl::Duration limit_;
  absl::Time heard_;
  absl::Time looked_;
};

}  // namespace regroup

#endif  // DAEMON_CONTROL_NODE_TABLE_H_
