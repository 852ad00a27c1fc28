// An ordered set of ranks with its own communicator. Nothing here involves a rank outside the
// group.
#ifndef ENGINE_GROUP_GROUP_H_
#define ENGINE_GROUP_GROUP_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "engine/group/rendezvous.h"

namespace regroup {

// A transfer or collective that was issued. Destroying it without Wait is allowed only after the
// group was aborted.
class Pending {
 public:
  virtual ~Pending() = default;

  // Blocks until the data arrived and the buffers given may be used again, or the deadline passed,
  // a peer went away or the group was aborted. Errors: DEADLINE_EXCEEDED, UNAVAILABLE, CANCELLED
  // (aborted); each names engine, group, operation, and the rank that it waited for. May be called
  // once.
  virtual absl::Status Wait() = 0;
};

struct GroupOptions {
  std::string engine;      // for messages
  std::string name;        // of the group, e.g. "dp" or "move"; part of the rendezvous prefix
  std::vector<int> ranks;  // global, in group order
  int rank = 0;            // this one, a member
  std::string host;        // the address of this rank that members reach, e.g. 127.0.0.1
  absl::Duration timeout = absl::Seconds(30);  // of each collective; see SetTimeout
};

// All collectives must be issued in the same order on all members. One thread issues and waits;
// Abort and the counters may be used from any thread. Tensors are contiguous CPU tensors; bytes are
// moved, dtypes are interpreted only by ReduceScatter (fp32).
class Group {
 public:
  // Collective over options.ranks. A group of one rank connects to nothing. Errors:
  // DEADLINE_EXCEEDED (some member never came; names the group), UNAVAILABLE.
  static absl::StatusOr<std::unique_ptr<Group>> Form(const GroupOptions& options,
                                                     const RendezvousAddress& rendezvous);
  virtual ~Group() = default;

  virtual const GroupOptions& options() const = 0;
  int size() const { return static_cast<int>(options().ranks.size()); }
  int index() const { return index_; }

  // full (1-D, size() * shard.numel() elements) = the members' shards in group order. `shard` may
  // be the member's own part of `full`. `what` names the operation in errors ("gather
  // model.layers.3").
  virtual std::unique_ptr<Pending> AllGather(const at::Tensor& shard, const at::Tensor& full,
                                             absl::string_view what) = 0;

  // shard (fp32) = sum over members, in group order, of their full[index() * shard.numel() ...].
  // Deterministic.
  virtual std::unique_ptr<Pending> ReduceScatter(const at::Tensor& full, const at::Tensor& shard,
                                                 absl::string_view what) = 0;

  // Point to point with member `peer` (group index, not this one). Matched by order per pair.
  virtual std::unique_ptr<Pending> Send(const at::Tensor& tensor, int peer,
                                        absl::string_view what) = 0;
  virtual std::unique_ptr<Pending> Recv(const at::Tensor& tensor, int peer,
                                        absl::string_view what) = 0;

  // Everybody's `mine`, in group order. For small values (at most 64 MiB each). Blocks.
  virtual absl::StatusOr<std::vector<std::string>> Exchange(absl::string_view mine,
                                                            absl::string_view what) = 0;

  // Blocks until all members are here.
  absl::Status Barrier(absl::string_view what) { return Exchange("", what).status(); }

  // Makes every pending and future operation fail with `reason`. Thread safe, returns at once.
  virtual void Abort(const absl::Status& reason) = 0;

  // The first error of an operation, or the reason of the first Abort: from then on every operation
  // fails. OK while the group works. Thread safe.
  virtual absl::Status failure() const = 0;

  // Of each collective that is waited for from now on. By the thread that issues and waits.
  virtual void SetTimeout(absl::Duration timeout) = 0;

  // Operations issued so far. Thread safe.
  virtual int64_t operations_issued() const = 0;

 protected:
  int index_ = 0;  // of this rank in the group
};

// Operations issued by all groups of this process since it started. Thread safe.
int64_t CollectivesIssued();

}  // namespace regroup

#endif  // ENGINE_GROUP_GROUP_H_
