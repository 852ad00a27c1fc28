// Small models and folders for tests.
#ifndef ENGINE_MODEL_TEST_MODELS_H_
#define ENGINE_MODEL_TEST_MODELS_H_

#include <ATen/core/Tensor.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "engine/model/load.h"
#include "engine/model/model.h"

namespace regroup {

// A folder below TEST_TMPDIR that goes away with this object.
class TempFolder {
 public:
  TempFolder();
  ~TempFolder();
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;

  const std::string& path() const { return path_; }
  std::string File(const std::string& name) const { return path_ + "/" + name; }
  void Write(const std::string& name, const std::string& content) const;
  std::string Read(const std::string& name) const;
  std::vector<std::string> List() const;  // sorted

 private:
  std::string path_;
};

// config.json of a llama with vocabulary 257, hidden 64, 2 layers, 4 heads, 2 key-value heads,
// intermediate 160, 64 positions, eos 2. `changes` replaces fields: values are JSON text, ""
// removes the field.
std::string SmallLlamaConfig(const std::map<std::string, std::string>& changes = {});

// Weights as a file would hold them: normal(0, 0.02) from a seed, norms near 1. In table order.
using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;
NamedTensors SmallWeights(const ParamTable& table, uint64_t seed);

// The bytes of a safetensors file of `tensors`, in their order.
std::string SafetensorsBytes(const NamedTensors& tensors);

// Lends leaves that collect gradients, without sharding.
class LeafRunner : public UnitRunner {
 public:
  // `weights` in table order; copied.
  LeafRunner(const ParamTable& table, const NamedTensors& weights, bool requires_grad);

  at::Tensor Run(int unit, const at::Tensor& x, const Body& body, Use use) override;

  const at::Tensor& parameter(int id) const { return parameters_[id]; }
  const std::vector<int>& units_run() const { return units_run_; }

 private:
  const ParamTable& table_;
  std::vector<at::Tensor> parameters_;
  std::vector<int> units_run_;
};

// A model of `config_json` through the registry. Aborts on an error.
std::unique_ptr<Model> ModelOf(const std::string& config_json);

}  // namespace regroup

#endif  // ENGINE_MODEL_TEST_MODELS_H_
