// Reads from the memory of other processes on the same host: process_vm_readv(2), one copy that the
// owner takes no part in.
#ifndef ENGINE_RELAYOUT_PEER_MEMORY_H_
#define ENGINE_RELAYOUT_PEER_MEMORY_H_

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/group/group.h"

namespace regroup {

// Who of a group can read whose memory. Immutable: thread safe.
class PeerMemory {
 public:
  // Collective over `group` (two exchanges). A member counts as readable only after a random number
  // of its own was read from it, so a process of another host with the same id is never taken for
  // it. Whoever may not read (another user, ptrace forbidden, a system call filter) reads nobody;
  // other namespaces of process ids or networks count as other hosts.
  // Errors: those of the exchange.
  static absl::StatusOr<PeerMemory> Meet(Group& group);

  // Whether member `reader` can read the memory of member `owner` (group indices). All members of
  // the group know the same. False for reader == owner.
  bool CanRead(int reader, int owner) const;

  // Copies `size` bytes at `address` of member `owner` to `to`; CanRead(this one, owner) has to
  // hold. The caller compares the owner's digest of them: a process id may have gone to another
  // process. Errors, naming `what` was done and the rank: UNAVAILABLE (reason RANK_LOST) if its
  // process is gone, RESOURCE_EXHAUSTED, INTERNAL.
  absl::Status Read(int owner, uint64_t address, void* to, size_t size,
                    absl::string_view what) const;

 private:
  struct Member {
    int rank = 0;
    pid_t pid = 0;
    std::vector<bool> reads;  // by group index
  };

  std::vector<Member> members_;  // in group order
};

}  // namespace regroup

#endif  // ENGINE_RELAYOUT_PEER_MEMORY_H_
