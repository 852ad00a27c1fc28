#include "engine/model/registry.h"

#include <cstdio>
#include <cstdlib>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/synchronization/mutex.h"
#include "engine/model/decoder.h"
#include "engine/model/mlp.h"
#include "engine/model/strict_json.h"

namespace regroup {
namespace {

struct Registry {
  absl::Mutex mutex;
  std::map<std::string, ModelFactory> factories ABSL_GUARDED_BY(mutex);
};

Registry& Families() {
  static Registry& registry = *[] {
    auto* made = new Registry;
    absl::MutexLock lock(&made->mutex);
    for (const char* type : {"llama", "qwen2", "qwen3"}) made->factories[type] = Decoder::Define;
    made->factories["mlp"] = Mlp::Define;
    return made;
  }();
  return registry;
}

}  // namespace

void RegisterModel(const std::string& model_type, ModelFactory factory) {
  Registry& registry = Families();
  absl::MutexLock lock(&registry.mutex);
  if (!registry.factories.emplace(model_type, std::move(factory)).second) {
    std::fprintf(stderr, "model type %s is registered twice\n", model_type.c_str());
    std::abort();
  }
}

absl::StatusOr<ModelDefinition> DefineModel(const ConfigFile& config, DType dtype) {
  Registry& registry = Families();
  ModelFactory factory;
  {
    absl::MutexLock lock(&registry.mutex);
    const auto it = registry.factories.find(config.model_type);
    if (it == registry.factories.end()) {
      const std::string known = absl::StrJoin(
          registry.factories, ", ",
          [](std::string* out, const auto& entry) { absl::StrAppend(out, entry.first); });
      return absl::UnimplementedError(
          absl::StrCat("not available in this version: model_type = ", Quote(config.model_type),
                       " in ", config.path, "; allowed: ", known));
    }
    factory = it->second;
  }
  return factory(config, dtype);
}

}  // namespace regroup
