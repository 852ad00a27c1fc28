// The safetensors format: 8 bytes with the length of a JSON header, the header, the tensors' bytes.
#ifndef ENGINE_MODEL_SAFETENSORS_H_
#define ENGINE_MODEL_SAFETENSORS_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/model/input_file.h"

namespace regroup {

// The reference library's limit.
inline constexpr int64_t kMaxSafetensorsHeader = 100'000'000;

struct TensorEntry {
  std::string name;
  std::string dtype;  // as in the file: F32, BF16, F16, ...
  std::vector<int64_t> shape;
  int64_t begin = 0;  // bytes from the start of the file's data
  int64_t end = 0;
};

// A file whose header was found to be sound. Thread safe.
class SafetensorsFile {
 public:
  // Reads and checks the header: its length, its JSON, no duplicate name, the bytes of each tensor
  // equal to dtype x shape, and the tensors tile the data exactly, without overlap, hole or
  // trailing bytes. What is allocated is bounded by the header's true length. Errors: those of
  // InputFile::Open; INVALID_ARGUMENT naming file, tensor and value; UNIMPLEMENTED (a dtype that
  // is not known).
  static absl::StatusOr<std::unique_ptr<SafetensorsFile>> Open(const std::string& path);

  const std::string& path() const { return file_->path(); }
  int64_t size() const { return file_->size(); }

  // In the order of their offsets.
  const std::vector<TensorEntry>& tensors() const { return tensors_; }

  // Bytes [begin, begin + size) of a tensor of this file (row-major, little endian) to `out`.
  // Errors: those of InputFile::ReadAt.
  absl::Status Read(const TensorEntry& tensor, int64_t begin, int64_t size, char* out) const {
    return file_->ReadAt(data_start_ + tensor.begin + begin, size, out);
  }

  // XXH3 of the header.
  uint64_t header_digest() const { return header_digest_; }

  // See InputFile.
  absl::Status CheckUnchanged() const { return file_->CheckUnchanged(); }

 private:
  SafetensorsFile() = default;

  std::unique_ptr<InputFile> file_;
  std::vector<TensorEntry> tensors_;
  int64_t data_start_ = 0;
  uint64_t header_digest_ = 0;
};

// The length and header of a file of `tensors`, whose offsets are filled in by the caller; the data
// starts at a multiple of 8 bytes. Errors: INVALID_ARGUMENT if a reader would refuse its length.
absl::StatusOr<std::string> MakeSafetensorsHeader(const std::vector<TensorEntry>& tensors);

}  // namespace regroup

#endif  // ENGINE_MODEL_SAFETENSORS_H_
