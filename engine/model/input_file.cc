#include "engine/model/input_file.h"

#include <fcntl.h>
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

absl::StatusOr<std::unique_ptr<InputFile>> InputFile::Open(const std::string& path) {
  const absl::Status usable = CheckPath(path);
  if (!usable.ok()) return usable;
  const auto refuse = [&path] {
    return absl::InvalidArgumentError(absl::StrCat(path, ": must be a regular file"));
  };
  struct stat info = {};
  if (stat(path.c_str(), &info) != 0) return SystemError(errno, path);
  if (!S_ISREG(info.st_mode)) return refuse();

  std::unique_ptr<InputFile> file(new InputFile);
  file->path_ = path;
  // The path may have become something else since stat: O_NONBLOCK keeps open from waiting.
  file->fd_ = open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  if (file->fd_ < 0) return SystemError(errno, path);
  if (fstat(file->fd_, &info) != 0) return SystemError(errno, path);
  if (!S_ISREG(info.st_mode)) return refuse();
  file->size_ = info.st_size;
  file->modified_ = info.st_mtim;
  return file;
}

InputFile::~InputFile() {
  if (fd_ >= 0) close(fd_);
}

absl::Status InputFile::ReadAt(int64_t offset, int64_t size, char* out) const {
  while (size > 0) {
    const ssize_t got = pread(fd_, out, static_cast<size_t>(size), offset);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return SystemError(errno, path_);
    if (got == 0) {
      return absl::DataLossError(absl::StrCat(path_, ": changed while it was in use: ", size_,
                                              " bytes when opened, ", offset, " now"));
    }
    offset += got;
    size -= got;
    out += got;
  }
  return absl::OkStatus();
}

absl::Status InputFile::CheckUnchanged() const {
  struct stat info = {};
  if (fstat(fd_, &info) != 0) return SystemError(errno, path_);
  if (info.st_size != size_) {
    return absl::DataLossError(absl::StrCat(path_, ": changed while it was in use: ", size_,
                                            " bytes when opened, ", info.st_size, " now"));
  }
  if (info.st_mtim.tv_sec != modified_.tv_sec || info.st_mtim.tv_nsec != modified_.tv_nsec) {
    return absl::DataLossError(absl::StrCat(path_, ": was rewritten while it was in use"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> ReadSmallFile(const std::string& path, int64_t limit) {
  absl::StatusOr<std::unique_ptr<InputFile>> file = InputFile::Open(path);
  if (!file.ok()) return file.status();
  const int64_t size = (*file)->size();
  if (size > limit) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": has ", size, " bytes; at most ", limit, " are allowed"));
  }
  std::string text(size, '\0');
  if (absl::Status read = (*file)->ReadAt(0, size, text.data()); !read.ok()) return read;
  return text;
}

}  // namespace regroup
