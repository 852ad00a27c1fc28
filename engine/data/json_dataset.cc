#include "engine/data/json_dataset.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/data/json_lines.h"
#include "engine/model/strict_json.h"

namespace regroup {
namespace {

using nlohmann::json;

// What a line of n numbers may have.
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

}  // namespace

absl::StatusOr<std::unique_ptr<Dataset>> OpenJsonRows(const InputFile& file,
                                                      const ModelLimits& limits) {
  JsonLinesOptions options;
  options.max_line =
      kBytesBesideNumbers + kMaxNumberBytes * (limits.in_features + limits.out_features);
  options.max_line_for = absl::StrCat(limits.in_features, " + ", limits.out_features, " numbers");
  options.fields = {"x", "y"};
  options.example = R"({"x": [...], "y": [...]})";
  std::vector<float> x, y;
  const absl::Status read =
      ForEachJsonLine(file, options, [&](const json& row, const std::string& where) {
        absl::Status inputs = AppendNumbers(row, "x", limits.in_features, where, &x);
        if (!inputs.ok()) return inputs;
        return AppendNumbers(row, "y", limits.out_features, where, &y);
      });
  if (!read.ok()) return read;
  return std::make_unique<JsonDataset>(limits.in_features, limits.out_features, std::move(x),
                                       std::move(y));
}

}  // namespace regroup
