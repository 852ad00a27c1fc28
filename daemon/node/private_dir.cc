#include "daemon/node/private_dir.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace regroup {
namespace {

namespace fs = std::filesystem;

constexpr char kParent[] = "/tmp";
constexpr char kPrefix[] = "regroup-";
constexpr char kTemplate[] = "/tmp/regroup-XXXXXX";

absl::Status SystemError(const char* path) {
  return absl::InternalError(
      absl::StrCat("cannot make a folder for sockets, ", path, ": ", strerror(errno)));
}

// The open folder, if nobody else has it locked.
Fd LockFolder(const char* path) {
  Fd folder(open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (folder.valid() && flock(folder.get(), LOCK_EX | LOCK_NB) != 0) folder.Reset();
  return folder;
}

// Whether a process still listens on the socket.
bool IsServed(const std::string& path) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof(address.sun_path)) return true;
  memcpy(address.sun_path, path.c_str(), path.size());
  const Fd probe(socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  return connect(probe.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0 ||
         errno != ECONNREFUSED;
}

bool HoldsOnlyDeadSockets(const fs::path& folder) {
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    if (!fs::is_socket(entry.symlink_status(error)) || IsServed(entry.path().string()))
      return false;
  }
  return !error;
}

void RemoveFolder(const fs::path& folder) {
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(folder, ignored)) {
    fs::remove(entry.path(), ignored);
  }
  fs::remove(folder, ignored);
}

}  // namespace

absl::StatusOr<PrivateDir> PrivateDir::Make() {
  // Between making and locking it, another daemon may take it for a stale one: then there is
  // another.
  for (int attempt = 0; attempt < 10; ++attempt) {
    char path[sizeof(kTemplate)];
    memcpy(path, kTemplate, sizeof(kTemplate));
    if (mkdtemp(path) == nullptr) return SystemError(path);
    Fd lock = LockFolder(path);
    struct stat here;
    struct stat locked;
    if (lock.valid() && stat(path, &here) == 0 && fstat(lock.get(), &locked) == 0 &&
        here.st_ino == locked.st_ino) {
      return PrivateDir(path, std::move(lock));
    }
  }
  return SystemError(kTemplate);
}

void PrivateDir::RemoveStale() {
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(kParent, ignored)) {
    const std::string name = entry.path().filename().string();
    struct stat info;
    if (!absl::StartsWith(name, kPrefix) || name.size() != strlen(kPrefix) + 6 ||
        lstat(entry.path().c_str(), &info) != 0 || !S_ISDIR(info.st_mode) ||
        info.st_uid != geteuid() || (info.st_mode & 0777) != 0700) {
      continue;
    }
    const Fd lock = LockFolder(entry.path().c_str());
    if (lock.valid() && HoldsOnlyDeadSockets(entry.path())) RemoveFolder(entry.path());
  }
}

PrivateDir::~PrivateDir() {
  if (!path_.empty()) RemoveFolder(path_);
}

}  // namespace regroup
