#include "engine/data/masked_dataset.h"

#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/data/json_lines.h"
#include "engine/data/token_dataset.h"
#include "engine/model/strict_json.h"

namespace regroup {
namespace {

using nlohmann::json;

constexpr int64_t kNotCounted = -100;

// What a line of n tokens with their mask may have.
constexpr int64_t kBytesBesideTokens = 64;
constexpr int64_t kMaxTokenBytes = 64;

class MaskedDataset : public Dataset {
 public:
  void AddToken(int64_t token, bool counts) {
    tokens_.push_back(static_cast<int32_t>(counts ? token : ~token));
    if (counts) ++counted_in_row_;
  }
  void EndRow() {
    ends_.push_back(static_cast<int64_t>(tokens_.size()));
    counted_.push_back(std::exchange(counted_in_row_, 0));
  }

  int64_t rows() const override { return static_cast<int64_t>(ends_.size()); }

  // Open checked every row.
  absl::Status Check(int64_t first, int64_t count) const override { return absl::OkStatus(); }

  int64_t CountTargets(absl::Span<const int64_t> rows) const override {
    int64_t count = 0;
    for (const int64_t row : rows) count += counted_[row];
    return count;
  }

  Batch Load(absl::Span<const int64_t> rows) const override {
    const auto count = static_cast<int64_t>(rows.size());
    int64_t width = 1;
    for (const int64_t row : rows) width = std::max(width, Length(row) - 1);
    Batch batch;
    batch.inputs = at::zeros({count, width}, at::kLong);
    batch.targets = at::full({count, width}, kNotCounted, at::kLong);
    int64_t* input = batch.inputs.data_ptr<int64_t>();
    int64_t* target = batch.targets.data_ptr<int64_t>();
    for (const int64_t row : rows) {
      const int32_t* tokens = tokens_.data() + ends_[row] - Length(row);
      for (int64_t i = 0; i + 1 < Length(row); ++i) {
        input[i] = std::max(tokens[i], ~tokens[i]);
        if (tokens[i + 1] >= 0) target[i] = tokens[i + 1];
      }
      input += width;
      target += width;
    }
    return batch;
  }

 private:
  int64_t Length(int64_t row) const { return ends_[row] - (row == 0 ? 0 : ends_[row - 1]); }

  std::vector<int32_t> tokens_;  // row after row; ~token where it does not count as a target
  std::vector<int64_t> ends_;    // of each row in tokens_
  std::vector<int64_t> counted_;
  int64_t counted_in_row_ = 0;  // of the row that is being added
};

absl::StatusOr<int64_t> TokenOf(const json& value, int64_t vocab_size, const std::string& where) {
  if (value.is_number_unsigned() && value.get<uint64_t>() < static_cast<uint64_t>(vocab_size)) {
    return value.get<int64_t>();
  }
  return absl::InvalidArgumentError(
      absl::StrCat(where, "tokens holds ", Show(value), ": must be an integer from 0 to ",
                   vocab_size - 1, " (the model's vocabulary has ", vocab_size, " tokens)"));
}

absl::StatusOr<bool> MaskOf(const json& value, const std::string& where) {
  if (value.is_boolean()) return value.get<bool>();
  if (value.is_number_unsigned() && value.get<uint64_t>() <= 1) return value.get<uint64_t>() == 1;
  return absl::InvalidArgumentError(
      absl::StrCat(where, "mask holds ", Show(value), ": must be 0, 1, false or true"));
}

absl::Status AppendRow(const json& row, const std::string& where, int64_t seq, int64_t vocab_size,
                       MaskedDataset* data) {
  const auto tokens = row.find("tokens");
  const std::string allowed =
      absl::StrCat("must be a list of 1 to ", seq + 1, " tokens (one more than --seq=", seq, ")");
  if (tokens == row.end()) {
    return absl::InvalidArgumentError(absl::StrCat(where, "tokens is missing; ", allowed));
  }
  if (!tokens->is_array()) {
    return absl::InvalidArgumentError(
        absl::StrCat(where, "tokens = ", Show(*tokens), ": ", allowed));
  }
  const auto count = static_cast<int64_t>(tokens->size());
  if (count < 1 || count > seq + 1) {
    return absl::InvalidArgumentError(
        absl::StrCat(where, "tokens has ", count, " tokens: ", allowed));
  }
  const auto mask = row.find("mask");
  const bool has_mask = mask != row.end();
  if (has_mask && (!mask->is_array() || static_cast<int64_t>(mask->size()) != count)) {
    return absl::InvalidArgumentError(absl::StrCat(where, "mask = ", Show(*mask),
                                                   ": must be a list of ", count,
                                                   " values, one for each token"));
  }
  for (int64_t i = 0; i < count; ++i) {
    const absl::StatusOr<int64_t> token = TokenOf((*tokens)[i], vocab_size, where);
    if (!token.ok()) return token.status();
    const absl::StatusOr<bool> masked = has_mask ? MaskOf((*mask)[i], where) : true;
    if (!masked.ok()) return masked.status();
    data->AddToken(*token, *masked && i > 0);
  }
  data->EndRow();
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Dataset>> OpenMaskedRows(const InputFile& file, int64_t seq,
                                                        const ModelLimits& limits) {
  if (absl::Status status = CheckSeq(seq, limits); !status.ok()) return status;
  JsonLinesOptions options;
  options.max_line = kBytesBesideTokens + kMaxTokenBytes * (seq + 1);
  options.max_line_for = absl::StrCat(seq + 1, " tokens (one more than --seq=", seq, ")");
  options.fields = {"tokens", "mask"};
  options.example = R"({"tokens": [...], "mask": [...]})";
  auto data = std::make_unique<MaskedDataset>();
  const absl::Status read =
      ForEachJsonLine(file, options, [&](const json& row, const std::string& where) {
        return AppendRow(row, where, seq, limits.vocab_size, data.get());
      });
  if (!read.ok()) return read;
  return data;
}

}  // namespace regroup
