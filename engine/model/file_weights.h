// Weights that come from safetensors files.
#ifndef ENGINE_MODEL_FILE_WEIGHTS_H_
#define ENGINE_MODEL_FILE_WEIGHTS_H_

#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/model/load.h"
#include "engine/model/registry.h"
#include "engine/model/weight_files.h"

namespace regroup {

// Compares the tensors of `files` with what `definition` needs. One error (INVALID_ARGUMENT) lists
// all that are missing, unexpected, of another shape or of a dtype that is not F32, BF16 or F16; a
// second copy of a tied weight must be equal to it. `folder` is for messages.
absl::Status CheckTensors(const ModelDefinition& definition, const WeightFiles& files,
                          const std::string& folder);

// What an engine computes in: `requested`, or what all parameters of `files` are stored in. Errors:
// UNIMPLEMENTED for files in several dtypes, naming them.
absl::StatusOr<DType> DecideDType(const ParamTable& table, const WeightFiles& files,
                                  std::optional<DType> requested, const std::string& folder);

// After CheckTensors. `config_digest` becomes the first of the content terms. Reads convert to
// the dtype asked for.
std::unique_ptr<WeightSource> MakeFileWeights(const ParamTable& table, WeightFiles files,
                                              const std::string& config_digest);

}  // namespace regroup

#endif  // ENGINE_MODEL_FILE_WEIGHTS_H_
