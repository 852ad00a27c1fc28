#include "daemon/node/private_dir.h"

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"

namespace regroup {

absl::StatusOr<PrivateDir> PrivateDir::Make() {
  char path[] = "/tmp/regroup-XXXXXX";
  if (mkdtemp(path) == nullptr) {
    return absl::InternalError(
        absl::StrCat("cannot make a folder for sockets, ", path, ": ", strerror(errno)));
  }
  return PrivateDir(path);
}

PrivateDir::~PrivateDir() {
  if (path_.empty()) return;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(path_, ignored)) {
    std::filesystem::remove(entry.path(), ignored);
  }
  std::filesystem::remove(path_, ignored);
}

}  // namespace regroup
