// Rows of a training file. Row r of a token file holds tokens [r*T, r*T + T] (T inputs, T
// next-token targets). A .jsonl file holds a row a line: for language models {"tokens": [...],
// "mask": [...]}, for mlp models {"x": [...], "y": [...]}.
#ifndef ENGINE_DATA_DATASET_H_
#define ENGINE_DATA_DATASET_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/model/model.h"

namespace regroup {

// Read-only after Open; safe to share between threads. Rows of tokens are read from the file when
// they are asked for, a .jsonl file is read whole by Open.
class Dataset {
 public:
  // Opens `path` for a model with `limits` and rows of `seq` tokens (0 for mlp models).
  // Errors, each naming --data or --seq, the value and what is allowed: NOT_FOUND; INVALID_ARGUMENT
  // (ending, empty, odd length, a line that is too long, shorter than one row, seq <= 0 or above
  // max_positions, seq given for mlp, a json line that is not a row).
  static absl::StatusOr<std::unique_ptr<Dataset>> Open(const std::string& path, int64_t seq,
                                                       const ModelLimits& limits);
  virtual ~Dataset() = default;

  virtual int64_t rows() const = 0;

  // Of the size and all content of a .jsonl file; of the size, beginning and end of a token file.
  // Different for files that can't mean the same. A line.
  const std::string& digest() const { return digest_; }

  // Checks rows first, first+1, ... (mod rows()), `count` of them (each row at most once).
  // Errors: INVALID_ARGUMENT naming the file, the position, the token and the vocabulary size;
  // DATA_LOSS if the file changed since it was opened.
  virtual absl::Status Check(int64_t first, int64_t count) const = 0;

  // Counted targets (language models) or target elements (mlp) of the given rows.
  virtual int64_t CountTargets(absl::Span<const int64_t> rows) const = 0;

  // The given rows as tensors; none gives tensors with 0 rows. Throws StatusException (DATA_LOSS)
  // if the file changed since it was opened.
  virtual Batch Load(absl::Span<const int64_t> rows) const = 0;

 private:
  std::string digest_;  // set by Open
};

// The rows of batch number `position` of `batch` rows: (position * batch + i) mod rows.
std::vector<int64_t> BatchRows(int64_t position, int64_t batch, int64_t rows);

// The rows of micro-batch `index` of `parts` (at most rows.size()): in order, as even as possible,
// earlier ones take the extra row.
absl::Span<const int64_t> SplitRows(absl::Span<const int64_t> rows, int64_t parts, int64_t index);

// Which of `count` rows member `index` of `members` takes: [floor(index*count/members),
// floor((index+1)*count/members)).
absl::Span<const int64_t> DealRows(absl::Span<const int64_t> rows, int members, int index);

}  // namespace regroup

#endif  // ENGINE_DATA_DATASET_H_
