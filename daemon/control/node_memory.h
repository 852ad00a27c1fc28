// Whether what an engine's ranks ask for fits on their machines: all ranks of one see the same free
// memory.
#ifndef DAEMON_CONTROL_NODE_MEMORY_H_
#define DAEMON_CONTROL_NODE_MEMORY_H_

#include <cstdint>
#include <limits>
#include <map>
#include <string>

#include "absl/status/status.h"

namespace regroup {

// The sums over the ranks of each node.
class NodeMemory {
 public:
  // What one rank of `node` ("" = this daemon's) needs, and what it sees free, in bytes. One that
  // needs nothing does not count.
  void Add(const std::string& node, int64_t needed, int64_t available);

  // RESOURCE_EXHAUSTED (MEMORY), naming the node, if the sum of a node is more than the least that
  // any of its ranks sees free.
  absl::Status Check() const;

 private:
  struct Sum {
    int ranks = 0;
    int64_t needed = 0;
    int64_t available = std::numeric_limits<int64_t>::max();
  };
  std::map<std::string, Sum> sums_;
};

}  // namespace regroup

#endif  // DAEMON_CONTROL_NODE_MEMORY_H_
