#include "engine/model/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace regroup {
namespace {

absl::Status SystemError(int error, const std::string& path) {
  const std::string message = absl::StrCat(path, ": ", std::strerror(error));
  switch (error) {
    case ENOENT:
    case ENOTDIR:
      return absl::NotFoundError(message);
    case EACCES:
    case EPERM:
      return absl::PermissionDeniedError(message);
    case ENAMETOOLONG:
    case ELOOP:
      return absl::InvalidArgumentError(message);
    default:
      return absl::InternalError(message);
  }
}

}  // namespace

absl::Status CheckPath(absl::string_view path) {
  if (path.empty() || path.size() >= PATH_MAX) {
    return absl::InvalidArgumentError(
        absl::StrCat("a path of ", path.size(), " bytes: must have from 1 to ", PATH_MAX - 1));
  }
  if (path.find('\0') != absl::string_view::npos) {
    return absl::InvalidArgumentError("a path with a zero byte: must have none");
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<MappedFile>> MappedFile::Open(const std::string& path) {
  const absl::Status usable = CheckPath(path);
  if (!usable.ok()) return usable;
  const auto refuse = [&path] {
    return absl::InvalidArgumentError(absl::StrCat(path, ": must be a regular file"));
  };
  struct stat info = {};
  if (stat(path.c_str(), &info) != 0) return SystemError(errno, path);
  if (!S_ISREG(info.st_mode)) return refuse();

  std::unique_ptr<MappedFile> file(new MappedFile);
  file->path_ = path;
  // The path may have become something else since stat: O_NONBLOCK keeps open from waiting.
  file->fd_ = open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  if (file->fd_ < 0) return SystemError(errno, path);
  if (fstat(file->fd_, &info) != 0) return SystemError(errno, path);
  if (!S_ISREG(info.st_mode)) return refuse();
  file->size_ = static_cast<size_t>(info.st_size);
  file->modified_ = info.st_mtim;
  if (file->size_ > 0) {
    void* data = mmap(nullptr, file->size_, PROT_READ, MAP_PRIVATE, file->fd_, 0);
    if (data == MAP_FAILED) return SystemError(errno, path);
    file->data_ = static_cast<const char*>(data);
  }
  return file;
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) munmap(const_cast<char*>(data_), size_);
  if (fd_ >= 0) close(fd_);
}

absl::Status MappedFile::CheckUnchanged() const {
  struct stat info = {};
  if (fstat(fd_, &info) != 0) return SystemError(errno, path_);
  if (static_cast<size_t>(info.st_size) != size_) {
    return absl::DataLossError(absl::StrCat(path_, ": changed while it was in use: ", size_,
                                            " bytes when opened, ", info.st_size, " now"));
  }
  if (info.st_mtim.tv_sec != modified_.tv_sec || info.st_mtim.tv_nsec != modified_.tv_nsec) {
    return absl::DataLossError(absl::StrCat(path_, ": was rewritten while it was in use"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> ReadSmallFile(const std::string& path, int64_t limit) {
  absl::StatusOr<std::unique_ptr<MappedFile>> file = MappedFile::Open(path);
  if (!file.ok()) return file.status();
  const absl::string_view bytes = (*file)->bytes();
  if (static_cast<int64_t>(bytes.size()) > limit) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": has ", bytes.size(), " bytes; at most ", limit, " are allowed"));
  }
  return std::string(bytes);
}

}  // namespace regroup
