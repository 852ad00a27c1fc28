// Files of rows of tokens with masks for language models: *.jsonl.
#ifndef ENGINE_DATA_MASKED_DATASET_H_
#define ENGINE_DATA_MASKED_DATASET_H_

#include <memory>

#include "absl/status/statusor.h"
#include "engine/data/dataset.h"
#include "engine/model/input_file.h"

namespace regroup {

// As Dataset::Open for a file of lines {"tokens": [...], "mask": [...]} of 1 to seq + 1 tokens.
// `mask`, if there, says of each token whether it counts as a target (0, 1, false, true); the first
// one never does. The rows are parsed here and kept, 4 bytes a token; files above 1 GiB are
// refused. Load pads the rows that it is asked for on the right, to the longest of them.
absl::StatusOr<std::unique_ptr<Dataset>> OpenMaskedRows(const InputFile& file, int64_t seq,
                                                        const ModelLimits& limits);

}  // namespace regroup

#endif  // ENGINE_DATA_MASKED_DATASET_H_
