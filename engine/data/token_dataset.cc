#include "engine/data/token_dataset.h"

#include <ATen/ops/empty.h>
#include <endian.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/group/comm_status.h"
#include "engine/model/input_file.h"

namespace regroup {
namespace {

class TokenDataset : public Dataset {
 public:
  TokenDataset(std::unique_ptr<InputFile> file, int token_bytes, int64_t seq, int64_t vocab_size)
      : file_(std::move(file)), token_bytes_(token_bytes), seq_(seq), vocab_size_(vocab_size) {
    rows_ = (tokens() - 1) / seq_;
  }

  int64_t tokens() const { return file_->size() / token_bytes_; }
  int64_t rows() const override { return rows_; }

  absl::Status Check(int64_t first, int64_t count) const override {
    const absl::Status unchanged = file_->CheckUnchanged();
    if (!unchanged.ok()) return WithReason(unchanged, "DATA");
    count = std::min(count, rows_);
    std::string bytes;
    for (int64_t i = 0; i < count; ++i) {
      const int64_t row = (first % rows_ + i) % rows_;
      const absl::Status read = ReadRow(row, &bytes);
      if (!read.ok()) return read;
      for (int64_t at = 0; at <= seq_; ++at) {
        const int64_t token = Token(bytes, at);
        if (token >= vocab_size_) {
          return absl::InvalidArgumentError(
              absl::StrCat("--data=", file_->path(), ": token ", token, " at position ",
                           row * seq_ + at, ": must be from 0 to ", vocab_size_ - 1,
                           " (the model's vocabulary has ", vocab_size_, " tokens)"));
        }
      }
    }
    return absl::OkStatus();
  }

  int64_t CountTargets(absl::Span<const int64_t> rows) const override {
    return static_cast<int64_t>(rows.size()) * seq_;
  }

  Batch Load(absl::Span<const int64_t> rows) const override {
    ThrowIfError(WithReason(file_->CheckUnchanged(), "DATA"));
    const auto count = static_cast<int64_t>(rows.size());
    Batch batch;
    batch.inputs = at::empty({count, seq_}, at::kLong);
    batch.targets = at::empty({count, seq_}, at::kLong);
    int64_t* input = batch.inputs.data_ptr<int64_t>();
    int64_t* target = batch.targets.data_ptr<int64_t>();
    std::string bytes;
    for (const int64_t row : rows) {
      ThrowIfError(ReadRow(row, &bytes));
      for (int64_t i = 0; i < seq_; ++i) {
        *input++ = Token(bytes, i);
        *target++ = Token(bytes, i + 1);
      }
    }
    return batch;
  }

 private:
  // The seq_ + 1 tokens of a row as they lie in the file.
  absl::Status ReadRow(int64_t row, std::string* bytes) const {
    bytes->resize((seq_ + 1) * token_bytes_);
    return WithReason(file_->ReadAt(row * seq_ * token_bytes_, static_cast<int64_t>(bytes->size()),
                                    bytes->data()),
                      "DATA");
  }

  int64_t Token(const std::string& bytes, int64_t position) const {
    const char* at = bytes.data() + position * token_bytes_;
    if (token_bytes_ == 2) {
      uint16_t token = 0;
      std::memcpy(&token, at, sizeof(token));
      return le16toh(token);
    }
    uint32_t token = 0;
    std::memcpy(&token, at, sizeof(token));
    return le32toh(token);
  }

  std::unique_ptr<InputFile> file_;
  int token_bytes_;
  int64_t seq_;
  int64_t vocab_size_;
  int64_t rows_ = 0;
};

}  // namespace

absl::Status CheckSeq(int64_t seq, const ModelLimits& limits) {
  if (seq >= 1 && seq <= limits.max_positions) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      seq == 0 ? "--seq is missing" : absl::StrCat("--seq=", seq), ": must be from 1 to ",
      limits.max_positions, " (the model's max_position_embeddings)"));
}

absl::StatusOr<std::unique_ptr<Dataset>> OpenTokens(std::unique_ptr<InputFile> file,
                                                    int token_bytes, int64_t seq,
                                                    const ModelLimits& limits) {
  if (absl::Status status = CheckSeq(seq, limits); !status.ok()) return status;
  const std::string path = file->path();
  const int64_t size = file->size();
  if (size % token_bytes != 0) {
    return absl::InvalidArgumentError(absl::StrCat("--data=", path, ": has ", size,
                                                   " bytes: must be a multiple of ", token_bytes));
  }
  const int64_t tokens = size / token_bytes;
  if (tokens < seq + 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--data=", path, ": has ", tokens, " tokens; a row of --seq=", seq, " needs ", seq + 1));
  }
  return std::make_unique<TokenDataset>(std::move(file), token_bytes, seq, limits.vocab_size);
}

}  // namespace regroup
