// Keeps commands of another daemon inside of this node's own --data-roots.
#ifndef DAEMON_AGENT_PATH_GUARD_H_
#define DAEMON_AGENT_PATH_GUARD_H_

#include <string>

#include "absl/status/status.h"
#include "daemon/control/data_roots.h"
#include "regroup/v1/worker.pb.h"

namespace regroup {

// Whether a worker that runs the command opens a path: then GuardPaths reads the file system.
bool HasPaths(const v1::Command& command);

// Puts the resolved path in the place of each path that the command makes the worker of `rank`
// open. Errors are those of DataRoots, and name the node too.
absl::Status GuardPaths(const std::string& node, const DataRoots& roots, int rank,
                        v1::Command* command);

}  // namespace regroup

#endif  // DAEMON_AGENT_PATH_GUARD_H_
