#include "daemon/node/state_dir.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

namespace regroup {
namespace {

// `folder`: the whole of it, `path` where in it.
absl::Status SystemError(const std::string& folder, absl::string_view what,
                         const std::string& path) {
  return absl::InternalError(absl::StrCat("--state-dir=", folder, ": cannot ", what, " ", path,
                                          ": ", strerror(errno),
                                          "; allowed: a folder that regroupd can make and write"));
}

absl::Status MakeFolders(const std::string& path) {
  for (size_t end = path.find('/', 1);; end = path.find('/', end + 1)) {
    const std::string part = path.substr(0, end);
    if (mkdir(part.c_str(), 0700) != 0 && errno != EEXIST) {
      return SystemError(path, "make", part);
    }
    if (end == std::string::npos) return absl::OkStatus();
  }
}

}  // namespace

absl::StatusOr<std::string> DefaultStateDir(const std::string& node) {
  const char* state = getenv("XDG_STATE_HOME");
  if (state != nullptr && *state == '/') return absl::StrCat(state, "/regroup/", node);
  const char* home = getenv("HOME");
  if (home != nullptr && *home == '/') return absl::StrCat(home, "/.local/state/regroup/", node);
  return absl::InvalidArgumentError(
      "no folder for the state: neither XDG_STATE_HOME nor HOME is set; give --state-dir=DIR");
}

absl::StatusOr<StateDir> StateDir::Lock(const std::string& path) {
  if (absl::Status status = MakeFolders(path); !status.ok()) return status;
  const std::string file = absl::StrCat(path, "/lock");
  Fd lock(open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (!lock.valid()) return SystemError(path, "open", file);
  if (flock(lock.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) return SystemError(path, "lock", file);
    char pid[32] = {};
    if (pread(lock.get(), pid, sizeof(pid) - 1, 0) < 0) pid[0] = '\0';
    return absl::FailedPreconditionError(
        absl::StrCat("--state-dir=", path, " is used by another regroupd, pid ",
                     *pid == '\0' ? "unknown" : absl::StripAsciiWhitespace(pid),
                     "; allowed: a folder of its own for each daemon"));
  }
  const std::string mine = absl::StrCat(getpid(), "\n");
  if (ftruncate(lock.get(), 0) != 0 ||
      pwrite(lock.get(), mine.data(), mine.size(), 0) != static_cast<ssize_t>(mine.size())) {
    return SystemError(path, "write", file);
  }
  return StateDir(path, std::move(lock));
}

}  // namespace regroup
