#include <string>

#include "engine/model/hf_config.h"
#include "engine/model/registry.h"
#include "tests/fuzz/fuzz_target.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto config = regroup::ParseConfigFile(
      "config.json", std::string(reinterpret_cast<const char*>(data), size));
  if (!config.ok()) return 0;
  const auto dtype = regroup::ConfiguredDType(*config);
  const auto model = regroup::DefineModel(*config, regroup::DType::kFp32);
  if (!model.ok()) return 0;
  regroup::Require(dtype.ok() || !dtype.status().message().empty(), "an error says what is wrong");
  regroup::Require(model->model->table().total_numel() > 0, "a model has parameters");
  return 0;
}
