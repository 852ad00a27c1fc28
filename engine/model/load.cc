#include "engine/model/load.h"

#include <sys/stat.h>
#include <xxhash.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "engine/layout/human_text.h"
#include "engine/model/file_weights.h"
#include "engine/model/hf_config.h"
#include "engine/model/init.h"
#include "engine/model/input_file.h"
#include "engine/model/mlp.h"
#include "engine/model/registry.h"
#include "engine/model/weight_files.h"

namespace regroup {
namespace {

// The same bits of the config decide the same model: norms, rotary base and ties stand in no table.
std::string ConfigDigest(const ConfigFile& config) {
  return absl::StrFormat("config %016x", XXH3_64bits(config.text.data(), config.text.size()));
}

absl::Status CheckFolder(const std::string& folder) {
  if (folder.empty()) {
    return absl::InvalidArgumentError(
        "--model is empty; allowed: a folder, random:FOLDER, mlp:in=I,hidden=H,layers=L,out=O");
  }
  const absl::Status usable = CheckPath(folder);
  if (!usable.ok()) return absl::InvalidArgumentError(absl::StrCat("--model: ", usable.message()));
  struct stat info = {};
  const bool exists = stat(folder.c_str(), &info) == 0;
  if (exists && S_ISDIR(info.st_mode)) return absl::OkStatus();
  const std::string why = exists ? "is not a folder" : std::strerror(errno);
  return absl::NotFoundError(
      absl::StrCat("--model=", Printable(folder, kMaxShownPath), ": ", why,
                   "; allowed: a folder, random:FOLDER, mlp:in=I,hidden=H,layers=L,out=O"));
}

absl::StatusOr<LoadedModel> Seeded(const ConfigFile& config, DType dtype, uint64_t seed) {
  absl::StatusOr<ModelDefinition> definition = DefineModel(config, dtype);
  if (!definition.ok()) return definition.status();
  LoadedModel loaded;
  loaded.weights = MakeSeededWeights(*definition, seed, ConfigDigest(config));
  loaded.model = std::move(definition->model);
  loaded.config_json = config.text;
  return loaded;
}

absl::StatusOr<LoadedModel> LoadRandom(const std::string& folder, std::optional<DType> dtype,
                                       uint64_t seed) {
  const absl::Status is_folder = CheckFolder(folder);
  if (!is_folder.ok()) return is_folder;
  absl::StatusOr<ConfigFile> config = ReadConfigFile(folder);
  if (!config.ok()) return config.status();
  if (!dtype.has_value()) {
    // There are no weights to say otherwise.
    const absl::StatusOr<std::optional<DType>> configured = ConfiguredDType(*config);
    if (!configured.ok()) return configured.status();
    dtype = *configured;
  }
  return Seeded(*config, dtype.value_or(DType::kFp32), seed);
}

absl::StatusOr<LoadedModel> LoadFolder(const std::string& folder, std::optional<DType> dtype) {
  const absl::Status is_folder = CheckFolder(folder);
  if (!is_folder.ok()) return is_folder;
  absl::StatusOr<ConfigFile> config = ReadConfigFile(folder);
  if (!config.ok()) return config.status();
  absl::StatusOr<ModelDefinition> definition = DefineModel(*config, DType::kFp32);
  if (!definition.ok()) return definition.status();
  absl::StatusOr<WeightFiles> files = OpenWeightFiles(folder);
  if (!files.ok()) return files.status();
  const absl::Status fits = CheckTensors(*definition, *files, folder);
  if (!fits.ok()) return fits;
  // What the config calls the dtype is not asked: the files know.
  const absl::StatusOr<DType> decided =
      DecideDType(definition->model->table(), *files, dtype, folder);
  if (!decided.ok()) return decided.status();
  if (*decided != definition->model->table().dtype()) {
    definition = DefineModel(*config, *decided);
    if (!definition.ok()) return definition.status();
  }
  LoadedModel loaded;
  loaded.weights =
      MakeFileWeights(definition->model->table(), *std::move(files), ConfigDigest(*config));
  loaded.model = std::move(definition->model);
  loaded.config_json = config->text;
  return loaded;
}

absl::StatusOr<LoadedModel> LoadSpec(absl::string_view spec, std::optional<DType> dtype,
                                     uint64_t seed) {
  const std::string whole(spec);
  if (absl::ConsumePrefix(&spec, "mlp:")) {
    absl::StatusOr<std::string> text = MlpConfigFromSpec(spec);
    if (!text.ok()) return text.status();
    absl::StatusOr<ConfigFile> config =
        ParseConfigFile(absl::StrCat("--model=", whole), *std::move(text));
    if (!config.ok()) return config.status();
    return Seeded(*config, dtype.value_or(DType::kFp32), seed);
  }
  if (absl::ConsumePrefix(&spec, "random:")) return LoadRandom(std::string(spec), dtype, seed);
  return LoadFolder(whole, dtype);
}

}  // namespace

absl::StatusOr<LoadedModel> LoadModel(absl::string_view spec, std::optional<DType> dtype,
                                      uint64_t seed) {
  absl::StatusOr<LoadedModel> loaded = LoadSpec(spec, dtype, seed);
  if (loaded.ok() || absl::StrContains(loaded.status().message(), "--model")) return loaded;
  // What is wrong stands in some file: which flag led there?
  const std::string flag = absl::StrCat("--model=", Printable(spec, kMaxShownPath));
  const absl::string_view what = loaded.status().message();
  return absl::Status(loaded.status().code(), absl::IsUnimplemented(loaded.status())
                                                  ? absl::StrCat(what, " (", flag, ")")
                                                  : absl::StrCat(flag, ": ", what));
}

}  // namespace regroup
