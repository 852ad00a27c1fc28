#include "engine/data/dataset.h"

#include <xxhash.h>

#include <algorithm>
#include <utility>

#include "absl/numeric/int128.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "engine/data/json_dataset.h"
#include "engine/data/masked_dataset.h"
#include "engine/data/token_dataset.h"
#include "engine/group/comm_status.h"
#include "engine/model/input_file.h"

namespace regroup {
namespace {

constexpr int64_t kDigestedAtEachEnd = 64 << 10;

constexpr int64_t kDigestedAtOnce = 1 << 20;

absl::StatusOr<std::string> DigestOfEnds(const InputFile& file) {
  const int64_t size = file.size();
  const int64_t count = std::min(kDigestedAtEachEnd, size);
  std::string text(2 * count, '\0');
  absl::Status read = file.ReadAt(0, count, text.data());
  if (read.ok()) read = file.ReadAt(size - count, count, &text[count]);
  if (!read.ok()) return WithReason(read, "DATA");
  return absl::StrFormat("%d bytes, %016x", size,
                         XXH3_64bits_withSeed(text.data(), text.size(), size));
}

// What the loss is divided by may depend on any byte.
absl::StatusOr<std::string> DigestOfAll(const InputFile& file) {
  const int64_t size = file.size();
  const std::unique_ptr<XXH3_state_t, XXH_errorcode (*)(XXH3_state_t*)> state(XXH3_createState(),
                                                                              XXH3_freeState);
  if (state == nullptr) return absl::ResourceExhaustedError("no memory for a digest");
  XXH3_64bits_reset_withSeed(state.get(), size);
  std::string text(std::min(kDigestedAtOnce, size), '\0');
  for (int64_t at = 0; at < size; at += kDigestedAtOnce) {
    const int64_t count = std::min(kDigestedAtOnce, size - at);
    const absl::Status read = file.ReadAt(at, count, text.data());
    if (!read.ok()) return WithReason(read, "DATA");
    XXH3_64bits_update(state.get(), text.data(), count);
  }
  // Neither these bytes nor the rows that were read before are of another version of the file.
  const absl::Status unchanged = file.CheckUnchanged();
  if (!unchanged.ok()) return WithReason(unchanged, "DATA");
  return absl::StrFormat("%d bytes, %016x", size, XXH3_64bits_digest(state.get()));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Dataset>> Dataset::Open(const std::string& path, int64_t seq,
                                                       const ModelLimits& limits) {
  const absl::Status usable = CheckPath(path);
  if (!usable.ok()) return absl::InvalidArgumentError(absl::StrCat("--data: ", usable.message()));
  const bool is_json = absl::EndsWith(path, ".jsonl");
  const int token_bytes = absl::EndsWith(path, ".u16.bin")   ? 2
                          : absl::EndsWith(path, ".u32.bin") ? 4
                                                             : 0;
  if (limits.is_language_model && token_bytes == 0 && !is_json) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--data=", path, ": must be named *.u16.bin, *.u32.bin or *.jsonl for a language model"));
  }
  if (!limits.is_language_model && !is_json) {
    return absl::InvalidArgumentError(
        absl::StrCat("--data=", path, ": must be named *.jsonl for an mlp model"));
  }
  if (!limits.is_language_model && seq != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("--seq=", seq, ": must not be given for an mlp model"));
  }
  absl::StatusOr<std::unique_ptr<InputFile>> file = InputFile::Open(path);
  if (!file.ok()) {
    return absl::Status(file.status().code(), absl::StrCat("--data=", file.status().message()));
  }
  absl::StatusOr<std::string> digest;
  absl::StatusOr<std::unique_ptr<Dataset>> data;
  if (is_json) {
    data = limits.is_language_model ? OpenMaskedRows(**file, seq, limits)
                                    : OpenJsonRows(**file, limits);
    if (!data.ok()) return data;
    digest = DigestOfAll(**file);
  } else {
    digest = DigestOfEnds(**file);
    if (!digest.ok()) return digest.status();
    data = OpenTokens(*std::move(file), token_bytes, seq, limits);
    if (!data.ok()) return data;
  }
  if (!digest.ok()) return digest.status();
  (*data)->digest_ = *std::move(digest);
  return data;
}

std::vector<int64_t> BatchRows(int64_t position, int64_t batch, int64_t rows) {
  // position * batch may exceed 64 bits in an engine that ran for ever; the row does not.
  const absl::int128 first = absl::int128(position) * batch;
  std::vector<int64_t> out(batch);
  for (int64_t i = 0; i < batch; ++i) out[i] = static_cast<int64_t>((first + i) % rows);
  return out;
}

absl::Span<const int64_t> SplitRows(absl::Span<const int64_t> rows, int64_t parts, int64_t index) {
  const auto count = static_cast<int64_t>(rows.size());
  const int64_t size = count / parts;
  const int64_t extra = count % parts;
  return rows.subspan(index * size + std::min(index, extra), size + (index < extra ? 1 : 0));
}

absl::Span<const int64_t> DealRows(absl::Span<const int64_t> rows, int members, int index) {
  const auto count = static_cast<int64_t>(rows.size());
  const int64_t begin = index * count / members;
  const int64_t end = (index + 1) * count / members;
  return rows.subspan(begin, end - begin);
}

}  // namespace regroup
