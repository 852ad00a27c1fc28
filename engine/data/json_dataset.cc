#include "engine/data/json_dataset.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "engine/model/input_file.h"
#include "engine/model/strict_json.h"

namespace regroup {
namespace {

using nlohmann::json;

constexpr size_t kMaxBytes = size_t{1} << 30;

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

}  // namespace

absl::StatusOr<std::unique_ptr<Dataset>> OpenJsonRows(const std::string& path,
                                                      const ModelLimits& limits) {
  absl::StatusOr<std::unique_ptr<InputFile>> file = InputFile::Open(path);
  if (!file.ok()) {
    return absl::Status(file.status().code(), absl::StrCat("--data=", file.status().message()));
  }
  absl::string_view rest = (*file)->bytes();
  if (rest.empty() || rest.size() > kMaxBytes) {
    return absl::InvalidArgumentError(absl::StrCat("--data=", path, ": has ", rest.size(),
                                                   " bytes: must have from 1 to ", kMaxBytes));
  }
  std::vector<float> x, y;
  for (int64_t number = 1; !rest.empty(); ++number) {
    const size_t end = std::min(rest.find('\n'), rest.size());
    const std::string where = absl::StrCat("--data=", path, ": line ", number, ": ");
    const absl::Status appended = AppendRow(rest.substr(0, end), where, limits, &x, &y);
    if (!appended.ok()) return appended;
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  return std::make_unique<JsonDataset>(limits.in_features, limits.out_features, std::move(x),
                                       std::move(y));
}

}  // namespace regroup
