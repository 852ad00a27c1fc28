// Whether what an engine's ranks ask for fits on their machine, where all of them see the same free
// memory.
#ifndef DAEMON_CONTROL_NODE_MEMORY_H_
#define DAEMON_CONTROL_NODE_MEMORY_H_

#include <cstdint>
#include <limits>
#include <string>

#include "absl/status/status.h"

namespace regroup {

// The sum over the ranks of one node.
class NodeMemory {
 public:
  // What one rank needs, and what it sees free, in bytes. One that needs nothing does not count.
  void Add(int64_t needed, int64_t available);

  // RESOURCE_EXHAUSTED (MEMORY) if the sum is more than the least that any of them sees free.
  absl::Status Check() const;

 private:
  int ranks_ = 0;
  int64_t needed_ = 0;
  int64_t available_ = std::numeric_limits<int64_t>::max();
};

}  // namespace regroup

#endif  // DAEMON_CONTROL_NODE_MEMORY_H_
