// Read-only mappings of files that users name.
#ifndef ENGINE_MODEL_MAPPED_FILE_H_
#define ENGINE_MODEL_MAPPED_FILE_H_

#include <sys/stat.h>

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace regroup {

// INVALID_ARGUMENT unless `path` is what a system call takes: 1 to 4095 bytes, none of them zero.
absl::Status CheckPath(absl::string_view path);

// A whole regular file. Thread safe.
class MappedFile {
 public:
  // Never blocks: anything but a regular file (a pipe, a folder, a device) is refused before it is
  // opened. Errors, naming `path`: NOT_FOUND, PERMISSION_DENIED, INVALID_ARGUMENT (CheckPath,
  // not a regular file), INTERNAL (the mapping).
  static absl::StatusOr<std::unique_ptr<MappedFile>> Open(const std::string& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  const std::string& path() const { return path_; }

  // The content; valid as long as this object. Pages are read from disk when they are touched.
  absl::string_view bytes() const { return {data_, size_}; }

  // DATA_LOSS if the file was truncated, grown or rewritten since it was opened. Call it before
  // touching bytes after a while: pages beyond a new end can't be read.
  absl::Status CheckUnchanged() const;

 private:
  MappedFile() = default;

  std::string path_;
  int fd_ = -1;
  const char* data_ = nullptr;
  size_t size_ = 0;
  timespec modified_ = {};
};

// The content of a small file. Errors: as MappedFile::Open, and INVALID_ARGUMENT above `limit`
// bytes.
absl::StatusOr<std::string> ReadSmallFile(const std::string& path, int64_t limit);

}  // namespace regroup

#endif  // ENGINE_MODEL_MAPPED_FILE_H_
