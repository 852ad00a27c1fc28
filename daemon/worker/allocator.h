// What the process's allocator holds beyond what is in use: jemalloc in regroup-worker, the C
// library's elsewhere (tests).
#ifndef DAEMON_WORKER_ALLOCATOR_H_
#define DAEMON_WORKER_ALLOCATOR_H_

#include <cstdint>

#include "absl/time/time.h"

namespace regroup {

// How long malloc_conf lets freed memory wait for its next use (worker_main.cc).
constexpr absl::Duration kFreedMemoryHeld = absl::Seconds(10);

// Lets blocks of any size wait for their next use as malloc_conf says (worker_main.cc); at first
// jemalloc gives those of 8 MiB and more back at once. Before there are other threads.
void HoldLargeBlocks();

// Gives freed memory back to the machine now, where others look for it. Any thread.
void ReleaseFreedMemory();

// Bytes that were freed and that the next allocations of this process take before any of the
// machine; 0 if the allocator cannot tell. Any thread.
int64_t FreedBytesHeld();

}  // namespace regroup

#endif  // DAEMON_WORKER_ALLOCATOR_H_
