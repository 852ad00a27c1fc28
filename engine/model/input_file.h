// Files that users name, for reading.
#ifndef ENGINE_MODEL_INPUT_FILE_H_
#define ENGINE_MODEL_INPUT_FILE_H_

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

// A regular file, read piece by piece and never mapped: who truncates it under us makes a read
// fail, not the process. Thread safe.
class InputFile {
 public:
  // Never blocks: anything but a regular file (a pipe, a folder, a device) is refused before it is
  // opened. Errors, naming `path`: NOT_FOUND, PERMISSION_DENIED, INVALID_ARGUMENT (CheckPath,
  // not a regular file), INTERNAL.
  static absl::StatusOr<std::unique_ptr<InputFile>> Open(const std::string& path);
  ~InputFile();
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;

  const std::string& path() const { return path_; }

  // In bytes, when it was opened.
  int64_t size() const { return size_; }

  // Reads [offset, offset + size) into `out`. Errors: DATA_LOSS if the file ends before; INTERNAL
  // (the disk).
  absl::Status ReadAt(int64_t offset, int64_t size, char* out) const;

  // DATA_LOSS if the file was truncated, grown or rewritten since it was opened.
  absl::Status CheckUnchanged() const;

 private:
  InputFile() = default;

  std::string path_;
  int fd_ = -1;
  int64_t size_ = 0;
  timespec modified_ = {};
};

// The content of a small file. Errors: as InputFile::Open, and INVALID_ARGUMENT above `limit`
// bytes.
absl::StatusOr<std::string> ReadSmallFile(const std::string& path, int64_t limit);

}  // namespace regroup

#endif  // ENGINE_MODEL_INPUT_FILE_H_
