#include "engine/data/dataset.h"

#include "absl/numeric/int128.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "engine/data/json_dataset.h"
#include "engine/data/token_dataset.h"
#include "engine/model/input_file.h"

namespace regroup {

absl::StatusOr<std::unique_ptr<Dataset>> Dataset::Open(const std::string& path, int64_t seq,
                                                       const ModelLimits& limits) {
  const absl::Status usable = CheckPath(path);
  if (!usable.ok()) return absl::InvalidArgumentError(absl::StrCat("--data: ", usable.message()));
  const bool is_json = absl::EndsWith(path, ".jsonl");
  const int token_bytes = absl::EndsWith(path, ".u16.bin")   ? 2
                          : absl::EndsWith(path, ".u32.bin") ? 4
                                                             : 0;
  if (limits.is_language_model) {
    if (token_bytes != 0) return OpenTokens(path, token_bytes, seq, limits);
    if (is_json) {
      return absl::UnimplementedError(
          absl::StrCat("not available in this version: --data=", path,
                       " (.jsonl for a language model); allowed: *.u16.bin, *.u32.bin"));
    }
    return absl::InvalidArgumentError(absl::StrCat(
        "--data=", path, ": must be named *.u16.bin or *.u32.bin for a language model"));
  }
  if (!is_json) {
    return absl::InvalidArgumentError(
        absl::StrCat("--data=", path, ": must be named *.jsonl for an mlp model"));
  }
  if (seq != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("--seq=", seq, ": must not be given for an mlp model"));
  }
  return OpenJsonRows(path, limits);
}

std::vector<int64_t> BatchRows(int64_t position, int64_t batch, int64_t rows) {
  // position * batch may exceed 64 bits in an engine that ran for ever; the row does not.
  const absl::int128 first = absl::int128(position) * batch;
  std::vector<int64_t> out(batch);
  for (int64_t i = 0; i < batch; ++i) out[i] = static_cast<int64_t>((first + i) % rows);
  return out;
}

absl::Span<const int64_t> DealRows(absl::Span<const int64_t> rows, int members, int index) {
  const auto count = static_cast<int64_t>(rows.size());
  const int64_t begin = index * count / members;
  const int64_t end = (index + 1) * count / members;
  return rows.subspan(begin, end - begin);
}

}  // namespace regroup
