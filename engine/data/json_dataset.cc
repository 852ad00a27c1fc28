#include "engine/data/json_dataset.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "engine/group/comm_status.h"
#include "engine/model/strict_json.h"

namespace regroup {
namespace {

using nlohmann::json;

constexpr int64_t kMaxBytes = int64_t{1} << 30;
constexpr int64_t kReadAtOnce = 1 << 20;

// What a line of n numbers may have: parsing needs many times the memory of the text.
constexpr int64_t kBytesBesideNumbers = 64;
constexpr int64_t kMaxNumberBytes = 40;

class JsonDataset : public Dataset {
 public:
  JsonDataset(int64_t in, int64_t out, std::vector<float> x, std::vector<float> y)
      : in_(in), out_(out), x_(std::move(x)), y_(std::move(y)) {}

  int64_t rows() const override { return static_cast<int64_t>(x_.size()) / in_; }

  // Open checked every row.
  absl::Status Check(int64_t first, int64_t count) const override { return absl::OkStatus(); }

  int64_t CountTargets(absl::Span<const int64_t> rows) const override {
    return static_cast<int64_t>(rows.size()) * out_;
  }

  Batch Load(absl::Span<const int64_t> rows) const override {
    const auto count = static_cast<int64_t>(rows.size());
    Batch batch;
    batch.inputs = at::empty({count, in_}, at::kFloat);
    batch.targets = at::empty({count, out_}, at::kFloat);
    float* input = batch.inputs.data_ptr<float>();
    float* target = batch.targets.data_ptr<float>();
    for (const int64_t row : rows) {
      input = std::copy_n(x_.begin() + row * in_, in_, input);
      target = std::copy_n(y_.begin() + row * out_, out_, target);
    }
    return batch;
  }

 private:
  int64_t in_;
  int64_t out_;
  std::vector<float> x_;  // row after row
  std::vector<float> y_;
};

// Appends the numbers of field `name`, of which there must be `count`.
absl::Status AppendNumbers(const json& row, const char* name, int64_t count,
                           const std::string& where, std::vector<float>* out) {
  const auto it = row.find(name);
  if (it == row.end()) return absl::InvalidArgumentError(absl::StrCat(where, name, " is missing"));
  if (!it->is_array() || static_cast<int64_t>(it->size()) != count) {
    return absl::InvalidArgumentError(
        absl::StrCat(where, name, " = ", Show(*it), ": must be a list of ", count, " numbers"));
  }
  for (const json& value : *it) {
    const float number = value.is_number() ? static_cast<float>(value.get<double>()) : NAN;
    if (!std::isfinite(number)) {
      return absl::InvalidArgumentError(
          absl::StrCat(where, name, " holds ", Show(value), ": must be a finite fp32 number"));
    }
    out->push_back(number);
  }
  return absl::OkStatus();
}

absl::Status AppendRow(absl::string_view line, const std::string& where, const ModelLimits& limits,
                       std::vector<float>* x, std::vector<float>* y) {
  const absl::StatusOr<json> row = ParseStrictJson(line, where.substr(0, where.size() - 2));
  if (!row.ok()) return row.status();
  if (!row->is_object()) {
    return absl::InvalidArgumentError(
        absl::StrCat(where, Show(*row), ": must be an object {\"x\": [...], \"y\": [...]}"));
  }
  for (const auto& entry : row->items()) {
    if (entry.key() != "x" && entry.key() != "y") {
      return absl::InvalidArgumentError(
          absl::StrCat(where, "unknown field ", Quote(entry.key()), "; allowed: x, y"));
    }
  }
  absl::Status inputs = AppendNumbers(*row, "x", limits.in_features, where, x);
  if (!inputs.ok()) return inputs;
  return AppendNumbers(*row, "y", limits.out_features, where, y);
}

// The lines of a file, of which only a piece is held at a time.
class LineReader {
 public:
  // `file` outlives the reader.
  LineReader(const InputFile& file, int64_t max_line) : file_(file), max_line_(max_line) {}

  bool done() const { return line_end_ == held_.size() && offset_ == file_.size(); }

  // Without its end; valid until the next call. Call it while not done().
  absl::StatusOr<absl::string_view> Next() {
    held_.erase(0, line_end_);
    size_t searched = 0;
    size_t end = 0;
    while ((end = held_.find('\n', searched)) == std::string::npos && offset_ < file_.size() &&
           static_cast<int64_t>(held_.size()) <= max_line_) {
      searched = held_.size();
      const int64_t count = std::min(kReadAtOnce, file_.size() - offset_);
      held_.resize(searched + count);
      absl::Status read = file_.ReadAt(offset_, count, &held_[searched]);
      if (!read.ok()) return WithReason(read, "DATA");
      offset_ += count;
    }
    const size_t length = std::min(end, held_.size());
    line_end_ = std::min(length + 1, held_.size());
    return absl::string_view(held_).substr(0, length);
  }

 private:
  const InputFile& file_;
  const int64_t max_line_;
  std::string held_;     // starts with the line returned last
  size_t line_end_ = 0;  // after its newline
  int64_t offset_ = 0;   // of the file: read up to here
};

}  // namespace

absl::StatusOr<std::unique_ptr<Dataset>> OpenJsonRows(const InputFile& file,
                                                      const ModelLimits& limits) {
  if (file.size() == 0 || file.size() > kMaxBytes) {
    return absl::InvalidArgumentError(absl::StrCat("--data=", file.path(), ": has ", file.size(),
                                                   " bytes: must have from 1 to ", kMaxBytes));
  }
  const int64_t max_line =
      kBytesBesideNumbers + kMaxNumberBytes * (limits.in_features + limits.out_features);
  std::vector<float> x, y;
  LineReader lines(file, max_line);
  for (int64_t number = 1; !lines.done(); ++number) {
    const std::string where = absl::StrCat("--data=", file.path(), ": line ", number, ": ");
    const absl::StatusOr<absl::string_view> line = lines.Next();
    if (!line.ok()) return line.status();
    if (static_cast<int64_t>(line->size()) > max_line) {
      return absl::InvalidArgumentError(absl::StrCat(where, "has more than ", max_line,
                                                     " bytes, the most for ", limits.in_features,
                                                     " + ", limits.out_features, " numbers"));
    }
    const absl::Status appended = AppendRow(*line, where, limits, &x, &y);
    if (!appended.ok()) return appended;
  }
  return std::make_unique<JsonDataset>(limits.in_features, limits.out_features, std::move(x),
                                       std::move(y));
}

}  // namespace regroup
