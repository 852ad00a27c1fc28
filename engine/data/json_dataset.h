// Files of rows for mlp models: *.jsonl.
#ifndef ENGINE_DATA_JSON_DATASET_H_
#define ENGINE_DATA_JSON_DATASET_H_

#include <memory>

#include "absl/status/statusor.h"
#include "engine/data/dataset.h"
#include "engine/model/input_file.h"

namespace regroup {

// As Dataset::Open for a file of lines {"x": [in numbers], "y": [out numbers]}. The rows are parsed
// here and kept as fp32; files above 1 GiB are refused, and lines above what their numbers need.
absl::StatusOr<std::unique_ptr<Dataset>> OpenJsonRows(const InputFile& file,
                                                      const ModelLimits& limits);

}  // namespace regroup

#endif  // ENGINE_DATA_JSON_DATASET_H_
