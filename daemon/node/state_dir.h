// The daemon's state folder, used by one daemon at a time.
#ifndef DAEMON_NODE_STATE_DIR_H_
#define DAEMON_NODE_STATE_DIR_H_

#include <string>

#include "absl/status/statusor.h"
#include "daemon/node/fd.h"

namespace regroup {

// $XDG_STATE_HOME/regroup/NODE, or $HOME/.local/state/regroup/NODE.
// Errors: INVALID_ARGUMENT if neither variable is set, naming --state-dir.
absl::StatusOr<std::string> DefaultStateDir(const std::string& node);

// Move only; holds the lock until destroyed. The system lets go of it when the process ends,
// however it ends.
class StateDir {
 public:
  // Makes the folder (and its parents) with mode 0700 where it does not exist, and locks it.
  // Errors: FAILED_PRECONDITION (another daemon uses it: names folder and pid); INTERNAL (names the
  // path).
  static absl::StatusOr<StateDir> Lock(const std::string& path);

  const std::string& path() const { return path_; }

 private:
  StateDir(std::string path, Fd lock) : path_(std::move(path)), lock_(std::move(lock)) {}

  std::string path_;
  Fd lock_;
};

}  // namespace regroup

#endif  // DAEMON_NODE_STATE_DIR_H_
