#include "engine/model/safetensors.h"

#include <endian.h>
#include <xxhash.h>

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/model/strict_json.h"

namespace regroup {
namespace {

using nlohmann::json;

constexpr size_t kMaxAxes = 32;

// Bytes of an element; 0 for a dtype that is not known.
int64_t ElementBytes(absl::string_view dtype) {
  if (dtype == "F64" || dtype == "I64" || dtype == "U64" || dtype == "C64") return 8;
  if (dtype == "F32" || dtype == "I32" || dtype == "U32") return 4;
  if (dtype == "F16" || dtype == "BF16" || dtype == "I16" || dtype == "U16") return 2;
  if (dtype == "BOOL" || dtype == "I8" || dtype == "U8" || dtype == "F8_E4M3" ||
      dtype == "F8_E5M2" || dtype == "F8_E8M0") {
    return 1;
  }
  return 0;
}

// Takes the header event by event: {"name": {"dtype": "F32", "shape": [..], "data_offsets": [b,
// e]}, ...,
// "__metadata__": {"key": "value"}}. Anything else ends the parse with error().
class HeaderHandler : public json::json_sax_t {
 public:
  const std::string& error() const { return error_; }
  std::vector<TensorEntry> TakeTensors() { return std::move(tensors_); }

  bool null() override { return Unexpected("null"); }
  bool boolean(bool) override { return Unexpected("a boolean"); }
  bool number_float(double, const std::string&) override { return Unexpected("a fraction"); }
  bool binary(json::binary_t&) override { return Unexpected("binary data"); }

  bool number_integer(int64_t value) override {
    return Unexpected(absl::StrCat("the negative number ", value));
  }

  bool number_unsigned(uint64_t value) override {
    if (numbers_ == nullptr) return Unexpected("a number");
    if (value > static_cast<uint64_t>(INT64_MAX)) {
      return Unexpected(absl::StrCat("the number ", value));
    }
    const size_t most = numbers_ == &offsets_ ? 2 : kMaxAxes;
    if (numbers_->size() == most) return Unexpected("one number more");
    numbers_->push_back(static_cast<int64_t>(value));
    return true;
  }

  bool string(std::string& value) override {
    if (place_ == Place::kMetadata) return true;
    if (place_ != Place::kTensor || field_ != "dtype" || numbers_ != nullptr) {
      return Unexpected("a string");
    }
    tensors_.back().dtype = value.substr(0, 32);
    return true;
  }

  bool start_object(size_t) override {
    if (place_ == Place::kOutside) {
      place_ = Place::kTop;
    } else if (place_ == Place::kTop) {
      place_ = name_ == "__metadata__" ? Place::kMetadata : Place::kTensor;
      if (place_ == Place::kMetadata && std::exchange(has_metadata_, true)) {
        return Refuse("duplicate \"__metadata__\"");
      }
      if (place_ == Place::kTensor) {
        tensors_.emplace_back().name = name_;
        seen_ = 0;
        offsets_.clear();
      }
    } else {
      return Unexpected("an object");
    }
    return true;
  }

  bool key(std::string& value) override {
    if (place_ == Place::kTop) name_ = value;
    if (place_ != Place::kTensor) return true;
    const int bit = value == "dtype" ? 1 : value == "shape" ? 2 : value == "data_offsets" ? 4 : 0;
    if (bit == 0) return Refuse(absl::StrCat(Where(), ": unknown key ", Quote(value)));
    if ((seen_ & bit) != 0) return Refuse(absl::StrCat(Where(), ": duplicate key ", value));
    seen_ |= bit;
    field_ = value;
    return true;
  }

  bool end_object() override {
    if (place_ == Place::kTensor) {
      if (seen_ != 7 || offsets_.size() != 2) {
        return Refuse(absl::StrCat(Where(), ": needs dtype, shape and two data_offsets"));
      }
      tensors_.back().begin = offsets_[0];
      tensors_.back().end = offsets_[1];
    }
    place_ = place_ == Place::kTop ? Place::kOutside : Place::kTop;
    return true;
  }

  bool start_array(size_t) override {
    if (place_ != Place::kTensor || numbers_ != nullptr || field_ == "dtype") {
      return Unexpected("a list");
    }
    numbers_ = field_ == "shape" ? &tensors_.back().shape : &offsets_;
    return true;
  }

  bool end_array() override {
    numbers_ = nullptr;
    return true;
  }

  bool parse_error(size_t position, const std::string&, const json::exception&) override {
    return Refuse(absl::StrCat("not valid JSON at byte ", position));
  }

 private:
  enum class Place { kOutside, kTop, kTensor, kMetadata };

  std::string Where() const {
    return place_ == Place::kOutside ? "header" : absl::StrCat("tensor ", Quote(name_));
  }
  bool Unexpected(absl::string_view what) {
    return Refuse(absl::StrCat(Where(), ": ", what, " where the format has none"));
  }
  bool Refuse(std::string why) {
    error_ = std::move(why);
    return false;
  }

  Place place_ = Place::kOutside;
  std::string name_;   // the last key of the top object
  std::string field_;  // the last key of a tensor
  int seen_ = 0;       // bits of the tensor's keys so far
  bool has_metadata_ = false;
  std::vector<int64_t> offsets_;
  std::vector<int64_t>* numbers_ = nullptr;  // the list that is open
  std::vector<TensorEntry> tensors_;
  std::string error_;
};

// dtype x shape against the bytes, one tensor alone.
absl::Status CheckTensor(const TensorEntry& tensor, int64_t data_size, const std::string& path) {
  const std::string where = absl::StrCat(path, ": tensor ", Quote(tensor.name), ": ");
  const int64_t element = ElementBytes(tensor.dtype);
  if (element == 0) {
    return absl::UnimplementedError(absl::StrCat("not available in this version: ", where,
                                                 "dtype = ", Quote(tensor.dtype),
                                                 "; allowed: F32, BF16, F16"));
  }
  if (tensor.begin > tensor.end || tensor.end > data_size) {
    return absl::InvalidArgumentError(absl::StrCat(where, "data_offsets = [", tensor.begin, ", ",
                                                   tensor.end, "]: must rise and lie within the ",
                                                   data_size, " bytes of data"));
  }
  int64_t bytes = element;
  for (int64_t extent : tensor.shape) {
    if (__builtin_mul_overflow(bytes, extent, &bytes)) {
      return absl::InvalidArgumentError(absl::StrCat(where, "shape is too large to count"));
    }
  }
  if (bytes != tensor.end - tensor.begin) {
    return absl::InvalidArgumentError(absl::StrCat(where, "data_offsets span ",
                                                   tensor.end - tensor.begin,
                                                   " bytes; dtype and shape need ", bytes));
  }
  return absl::OkStatus();
}

// Names once each, and offsets that tile [0, data_size).
absl::Status CheckTogether(std::vector<TensorEntry>* tensors, int64_t data_size,
                           const std::string& path) {
  std::sort(tensors->begin(), tensors->end(),
            [](const TensorEntry& a, const TensorEntry& b) { return a.name < b.name; });
  for (size_t i = 1; i < tensors->size(); ++i) {
    const std::string& name = (*tensors)[i].name;
    if (name == (*tensors)[i - 1].name) {
      return absl::InvalidArgumentError(absl::StrCat(path, ": duplicate tensor ", Quote(name)));
    }
  }
  std::sort(tensors->begin(), tensors->end(), [](const TensorEntry& a, const TensorEntry& b) {
    return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
  });
  int64_t cursor = 0;
  for (const TensorEntry& tensor : *tensors) {
    if (tensor.begin != cursor) {
      return absl::InvalidArgumentError(absl::StrCat(
          path, ": tensor ", Quote(tensor.name), " starts at byte ", tensor.begin,
          tensor.begin < cursor ? ": overlaps the tensor before it, which ends at byte "
                                : ": leaves a hole after byte ",
          cursor));
    }
    cursor = tensor.end;
  }
  if (cursor != data_size) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": ", data_size - cursor, " trailing bytes after the last tensor"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<SafetensorsFile>> SafetensorsFile::Open(const std::string& path) {
  absl::StatusOr<std::unique_ptr<InputFile>> input = InputFile::Open(path);
  if (!input.ok()) return input.status();
  const int64_t size = (*input)->size();
  uint64_t length = 0;
  if (size < static_cast<int64_t>(sizeof(length))) {
    return absl::InvalidArgumentError(absl::StrCat(
        path, ": has ", size, " bytes; a safetensors file starts with an 8-byte length"));
  }
  absl::Status read = (*input)->ReadAt(0, sizeof(length), reinterpret_cast<char*>(&length));
  if (!read.ok()) return read;
  length = le64toh(length);
  const uint64_t limit = std::min<uint64_t>(size - sizeof(length), kMaxSafetensorsHeader);
  if (length < 2 || length > limit) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": header length = ", length, ": must be from 2 to ", limit, " bytes"));
  }
  std::string header(length, '\0');
  read = (*input)->ReadAt(sizeof(length), static_cast<int64_t>(length), header.data());
  if (!read.ok()) return read;
  if (header[0] != '{') {
    return absl::InvalidArgumentError(absl::StrCat(path, ": the header must start with {"));
  }
  HeaderHandler handler;
  if (!json::sax_parse(header.begin(), header.end(), &handler)) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": ", handler.error()));
  }
  std::unique_ptr<SafetensorsFile> file(new SafetensorsFile);
  file->tensors_ = handler.TakeTensors();
  file->data_start_ = static_cast<int64_t>(sizeof(length) + length);
  const int64_t data_size = size - file->data_start_;
  for (const TensorEntry& tensor : file->tensors_) {
    const absl::Status sound = CheckTensor(tensor, data_size, path);
    if (!sound.ok()) return sound;
  }
  const absl::Status tiled = CheckTogether(&file->tensors_, data_size, path);
  if (!tiled.ok()) return tiled;
  file->header_digest_ = XXH3_64bits(header.data(), header.size());
  file->file_ = *std::move(input);
  return file;
}

absl::StatusOr<std::string> MakeSafetensorsHeader(const std::vector<TensorEntry>& tensors) {
  std::string text = R"({"__metadata__":{"format":"pt"})";
  for (const TensorEntry& tensor : tensors) {
    absl::StrAppend(&text, ",", json(tensor.name).dump(), ":{\"dtype\":\"", tensor.dtype,
                    "\",\"shape\":", json(tensor.shape).dump(), ",\"data_offsets\":[", tensor.begin,
                    ",", tensor.end, "]}");
  }
  text += '}';
  text.resize((text.size() + 7) / 8 * 8, ' ');
  if (static_cast<int64_t>(text.size()) > kMaxSafetensorsHeader) {
    return absl::InvalidArgumentError(absl::StrCat("a safetensors header of ", text.size(),
                                                   " bytes; at most ", kMaxSafetensorsHeader,
                                                   " are allowed"));
  }
  const uint64_t length = htole64(text.size());
  return absl::StrCat(absl::string_view(reinterpret_cast<const char*>(&length), sizeof(length)),
                      text);
}

}  // namespace regroup
