// From a model SPEC to a Model and a source of its initial weights.
#ifndef ENGINE_MODEL_LOAD_H_
#define ENGINE_MODEL_LOAD_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/layout/param_table.h"
#include "engine/model/model.h"

namespace regroup {

// Where the initial value of a parameter comes from: safetensors files, or a seeded draw that does
// not depend on the layout.
class WeightSource {
 public:
  virtual ~WeightSource() = default;

  // Elements [begin, end) of parameter `id` in row-major order, 1-D, converted to `dtype`. A file
  // is read only where asked. Errors: DATA_LOSS if the file changed under us.
  virtual absl::StatusOr<at::Tensor> Read(int id, int64_t begin, int64_t end, DType dtype) = 0;

  // Describes the content for the ranks' agreement, a value a line: the config's digest, then a
  // line for each file (name, size and header digest), or the seed.
  virtual std::vector<std::string> ContentTerms() const = 0;
};

struct LoadedModel {
  std::unique_ptr<Model> model;
  std::unique_ptr<WeightSource> weights;
  std::string config_json;  // what export writes as config.json
};

// Reads `spec`: a folder with config.json + *.safetensors, random:FOLDER, or
// mlp:in=8,hidden=16,layers=2,out=4. Reads headers only. `dtype` unset: the
// files' own. Everything is checked before anything is allocated: all missing, unexpected and
// mis-shaped tensors are listed in one error. Errors: INVALID_ARGUMENT (spec, config or header,
// naming file, field and value), NOT_FOUND (folder or file), UNIMPLEMENTED (model type, rope type,
// activation, files of several dtypes).
absl::StatusOr<LoadedModel> LoadModel(absl::string_view spec, std::optional<DType> dtype,
                                      uint64_t seed);

// Writes a folder of `config_json` and one model.safetensors, tensor after tensor in table order,
// without ever holding more than one. Not thread safe; runs on the lead.
class ExportWriter {
 public:
  // Starts to write aside, beside `directory`, which must not exist or be empty.
  // Errors: ALREADY_EXISTS, NOT_FOUND (parent), PERMISSION_DENIED.
  static absl::StatusOr<std::unique_ptr<ExportWriter>> Start(const std::string& directory,
                                                             const std::string& config_json,
                                                             const ParamTable& table);
  // Whether Start would take the folder, as it is now. Errors: Start's.
  static absl::Status Check(const std::string& directory);
  virtual ~ExportWriter() = default;  // without Commit: removes what was written

  // Appends parameter `id`, whose whole value is `value` (the table's shape and dtype). In table
  // order. Errors: RESOURCE_EXHAUSTED (disk full), INTERNAL naming the path.
  virtual absl::Status Write(int id, const at::Tensor& value) = 0;

  // fsyncs and renames into place; returns the bytes written.
  virtual absl::StatusOr<int64_t> Commit() = 0;
};

}  // namespace regroup

#endif  // ENGINE_MODEL_LOAD_H_
