// A short folder that only this user can enter, gone when its owner is.
#ifndef DAEMON_NODE_PRIVATE_DIR_H_
#define DAEMON_NODE_PRIVATE_DIR_H_

#include <string>
#include <utility>

#include "absl/status/statusor.h"

namespace regroup {

// Move only. The destructor removes the folder and the files directly in it.
class PrivateDir {
 public:
  // Makes /tmp/regroup-XXXXXX, mode 0700: short, because a socket path has 108 bytes.
  // Errors: INTERNAL, naming the folder and what the system said.
  static absl::StatusOr<PrivateDir> Make();

  PrivateDir(PrivateDir&& other) noexcept : path_(std::exchange(other.path_, "")) {}
  PrivateDir& operator=(PrivateDir&&) = delete;
  ~PrivateDir();

  const std::string& path() const { return path_; }

 private:
  explicit PrivateDir(std::string path) : path_(std::move(path)) {}
  std::string path_;
};

}  // namespace regroup

#endif  // DAEMON_NODE_PRIVATE_DIR_H_
