// The model families, by the model_type of config.json. docs/models.md shows how to add one.
#ifndef ENGINE_MODEL_REGISTRY_H_
#define ENGINE_MODEL_REGISTRY_H_

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/model/hf_config.h"
#include "engine/model/model.h"

namespace regroup {

// What a family says about one config.
struct ModelDefinition {
  std::unique_ptr<Model> model;

  // The seeded initial value of a parameter: fp32, of its shape. Draws from the generator alone.
  std::function<at::Tensor(const Parameter& parameter, at::Generator generator)> initial;

  // Tensors that a file may hold beside the parameters: a second copy of a tied weight (name ->
  // parameter that it must equal), and names by their endings that carry no state.
  std::map<std::string, std::string> copies;
  std::vector<std::string> ignored_endings;
};

// Makes the model of a config whose model_type was registered. Checks every field and allocates
// nothing that a field sizes. Errors: INVALID_ARGUMENT, UNIMPLEMENTED, naming file, field, value
// and what is allowed.
using ModelFactory =
    std::function<absl::StatusOr<ModelDefinition>(const ConfigFile& config, DType dtype)>;

// Adds a family. Thread safe. A model_type may be registered once (else the process aborts).
void RegisterModel(const std::string& model_type, ModelFactory factory);

// Adds a class that has
//   static absl::StatusOr<ModelDefinition> Define(const ConfigFile& config, DType dtype);
// as a family, before main: for an object at namespace scope, in a library with alwayslink = True.
//   const ModelRegistration<Bigram> kBigram("bigram");
template <typename Family>
class ModelRegistration {
 public:
  explicit ModelRegistration(const std::string& model_type) {
    RegisterModel(model_type, &Family::Define);
  }
};

// Thread safe. Errors: those of the factory; UNIMPLEMENTED for a model_type that nobody registered,
// naming it and those that are.
absl::StatusOr<ModelDefinition> DefineModel(const ConfigFile& config, DType dtype);

}  // namespace regroup

#endif  // ENGINE_MODEL_REGISTRY_H_
