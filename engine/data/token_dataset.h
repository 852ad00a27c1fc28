// Token files: *.u16.bin and *.u32.bin.
#ifndef ENGINE_DATA_TOKEN_DATASET_H_
#define ENGINE_DATA_TOKEN_DATASET_H_

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "engine/data/dataset.h"
#include "engine/model/input_file.h"

namespace regroup {

// Whether rows of `seq` tokens suit the model. Errors: INVALID_ARGUMENT naming --seq.
absl::Status CheckSeq(int64_t seq, const ModelLimits& limits);

// As Dataset::Open for a file of little-endian tokens of `token_bytes` (2 or 4) bytes each.
absl::StatusOr<std::unique_ptr<Dataset>> OpenTokens(std::unique_ptr<InputFile> file,
                                                    int token_bytes, int64_t seq,
                                                    const ModelLimits& limits);

}  // namespace regroup

#endif  // ENGINE_DATA_TOKEN_DATASET_H_
