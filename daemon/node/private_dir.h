// A short folder that only this user can enter, gone when its owner is.
#ifndef DAEMON_NODE_PRIVATE_DIR_H_
#define DAEMON_NODE_PRIVATE_DIR_H_

#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "daemon/node/fd.h"

namespace regroup {

// Move only. The destructor removes the folder and the files directly in it.
class PrivateDir {
 public:
  // Makes /tmp/regroup-XXXXXX, mode 0700: short, because a socket path has 108 bytes.
  // Errors: INTERNAL, naming the folder and what the system said.
  static absl::StatusOr<PrivateDir> Make();

  // Removes folders of this user whose owner ended without doing so, if they hold nothing but
  // sockets.
  static void RemoveStale();

  PrivateDir(PrivateDir&& other) noexcept
      : path_(std::exchange(other.path_, "")), lock_(std::move(other.lock_)) {}
  PrivateDir& operator=(PrivateDir&&) = delete;
  ~PrivateDir();

  const std::string& path() const { return path_; }

 private:
  PrivateDir(std::string path, Fd lock) : path_(std::move(path)), lock_(std::move(lock)) {}

  std::string path_;
  Fd lock_;  // the folder itself, locked as long as its owner lives
};

}  // namespace regroup

#endif  // DAEMON_NODE_PRIVATE_DIR_H_
