#include "absl/strings/string_view.h"
#include "engine/model/hf_config.h"
#include "engine/model/mlp.h"
#include "engine/model/registry.h"
#include "tests/fuzz/fuzz_target.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const absl::string_view spec(reinterpret_cast<const char*>(data), size);
  const auto text = regroup::MlpConfigFromSpec(spec);
  if (!text.ok()) return 0;
  const auto config = regroup::ParseConfigFile("--model", *text);
  regroup::Require(config.ok(), "a spec becomes a config that can be read");
  const auto model = regroup::DefineModel(*config, regroup::DType::kFp32);
  if (model.ok()) regroup::Require(model->model->table().total_numel() > 0, "it has parameters");
  return 0;
}
