// The safetensors files of one model folder.
#ifndef ENGINE_MODEL_WEIGHT_FILES_H_
#define ENGINE_MODEL_WEIGHT_FILES_H_

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/model/safetensors.h"

namespace regroup {

struct FileTensor {
  const SafetensorsFile* file = nullptr;  // owned by WeightFiles
  const TensorEntry* entry = nullptr;     // owned by the file
};

struct WeightFiles {
  std::vector<std::unique_ptr<SafetensorsFile>> files;  // in the order of their names
  std::map<std::string, FileTensor> tensors;            // by name
};

// Opens model.safetensors, or what model.safetensors.index.json names, or the one *.safetensors
// file there is. Index and files must agree: each tensor of the index is in the file that it names
// and in no other, and the files hold nothing else. Errors: NOT_FOUND; INVALID_ARGUMENT (a folder
// that says two things, a file name that leaves the folder, disagreement, no safetensors but
// pytorch .bin files, and those of SafetensorsFile::Open).
absl::StatusOr<WeightFiles> OpenWeightFiles(const std::string& folder);

}  // namespace regroup

#endif  // ENGINE_MODEL_WEIGHT_FILES_H_
