// For tests of what reads the memory of other processes.
#ifndef ENGINE_RELAYOUT_OWN_MEMORY_H_
#define ENGINE_RELAYOUT_OWN_MEMORY_H_

#include <sys/uio.h>
#include <unistd.h>

namespace regroup {

// False where process_vm_readv(2) is filtered: moves go through the group there.
inline bool CanReadOwnMemory() {
  int from = 1;
  int to = 0;
  iovec local{&to, sizeof(to)};
  iovec remote{&from, sizeof(from)};
  return process_vm_readv(getpid(), &local, 1, &remote, 1, 0) == sizeof(to);
}

}  // namespace regroup

#endif  // ENGINE_RELAYOUT_OWN_MEMORY_H_
