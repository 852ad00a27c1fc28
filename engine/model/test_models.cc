#include "engine/model/test_models.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "engine/model/registry.h"
#include "engine/model/safetensors.h"

namespace regroup {

TempFolder::TempFolder() {
  std::string path = testing::TempDir() + "/folder-XXXXXX";
  if (mkdtemp(path.data()) == nullptr) abort();
  path_ = path;
}

TempFolder::~TempFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

void TempFolder::Write(const std::string& name, const std::string& content) const {
  std::ofstream(File(name), std::ios::binary) << content;
}

std::string TempFolder::Read(const std::string& name) const {
  std::ifstream file(File(name), std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

std::vector<std::string> TempFolder::List() const {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(path_)) {
    names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::string SmallLlamaConfig(const std::map<std::string, std::string>& changes) {
  nlohmann::ordered_json config = nlohmann::ordered_json::parse(R"({
    "architectures": ["LlamaForCausalLM"], "attention_bias": false, "bos_token_id": 1, "eos_token_id": 2,
    "head_dim": 16, "hidden_act": "silu", "hidden_size": 64, "initializer_range": 0.02,
    "intermediate_size": 160, "max_position_embeddings": 64, "mlp_bias": false, "model_type": "llama",
    "num_attention_heads": 4, "num_hidden_layers": 2, "num_key_value_heads": 2, "rms_norm_eps": 1e-06,
    "rope_scaling": null, "rope_theta": 10000.0, "tie_word_embeddings": false, "torch_dtype": "float32",
    "vocab_size": 257})");
  for (const auto& [field, value] : changes) {
    if (value.empty()) {
      config.erase(field);
    } else {
      config[field] = nlohmann::ordered_json::parse(value);
    }
  }
  return config.dump(2);
}

NamedTensors SmallWeights(const ParamTable& table, uint64_t seed) {
  at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(seed);
  NamedTensors weights;
  for (const Parameter& parameter : table.parameters()) {
    at::Tensor value = at::empty(parameter.shape, at::kFloat).normal_(0, 0.02, generator);
    if (parameter.shape.size() == 1) value += 1;
    weights.emplace_back(parameter.name, value);
  }
  return weights;
}

std::string SafetensorsBytes(const NamedTensors& tensors) {
  std::vector<TensorEntry> entries;
  std::string data;
  for (const auto& [name, tensor] : tensors) {
    TensorEntry entry;
    entry.name = name;
    entry.dtype = tensor.scalar_type() == at::kFloat      ? "F32"
                  : tensor.scalar_type() == at::kBFloat16 ? "BF16"
                  : tensor.scalar_type() == at::kHalf     ? "F16"
                  : tensor.scalar_type() == at::kDouble   ? "F64"
                                                          : "?";
    entry.shape = tensor.sizes().vec();
    entry.begin = static_cast<int64_t>(data.size());
    const at::Tensor whole = tensor.contiguous();
    data.append(static_cast<const char*>(whole.const_data_ptr()), whole.nbytes());
    entry.end = static_cast<int64_t>(data.size());
    entries.push_back(entry);
  }
  return MakeSafetensorsHeader(entries).value() + data;
}

LeafRunner::LeafRunner(const ParamTable& table, const NamedTensors& weights, bool requires_grad)
    : table_(table) {
  for (const auto& weight : weights) {
    parameters_.push_back(weight.second.clone().set_requires_grad(requires_grad));
  }
}

at::Tensor LeafRunner::Run(int unit, const at::Tensor& x, const Body& body, Use use) {
  units_run_.push_back(unit);
  std::vector<at::Tensor> params;
  for (const int id : table_.unit(unit).parameters) params.push_back(parameters_[id]);
  return body(x, params);
}

std::unique_ptr<Model> ModelOf(const std::string& config_json) {
  return std::move(
      DefineModel(ParseConfigFile("config.json", config_json).value(), DType::kFp32).value().model);
}

}  // namespace regroup
