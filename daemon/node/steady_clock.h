// Time that nobody sets.
#ifndef DAEMON_NODE_STEADY_CLOCK_H_
#define DAEMON_NODE_STEADY_CLOCK_H_

#include <chrono>

#include "absl/time/time.h"

namespace regroup {

// For differences only: its origin means nothing.
inline absl::Time SteadyNow() {
  return absl::FromChrono(std::chrono::system_clock::time_point(
      std::chrono::duration_cast<std::chrono::system_clock::duration>(
          std::chrono::steady_clock::now().time_since_epoch())));
}

}  // namespace regroup

#endif  // DAEMON_NODE_STEADY_CLOCK_H_
