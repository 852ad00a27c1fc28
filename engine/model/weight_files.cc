#include "engine/model/weight_files.h"

#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <system_error>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/model/input_file.h"
#include "engine/model/strict_json.h"

namespace regroup {
namespace {

using nlohmann::json;

constexpr char kSingle[] = "model.safetensors";
constexpr char kIndex[] = "model.safetensors.index.json";
constexpr int64_t kMaxIndexBytes = 64 << 20;
constexpr size_t kMaxFiles = 10000;

using WeightMap = std::map<std::string, std::string>;  // tensor -> file name

absl::StatusOr<WeightMap> ReadIndex(const std::string& path) {
  absl::StatusOr<std::string> text = ReadSmallFile(path, kMaxIndexBytes);
  if (!text.ok()) return text.status();
  absl::StatusOr<json> index = ParseStrictJson(*text, path);
  if (!index.ok()) return index.status();
  const auto map = index->is_object() ? index->find("weight_map") : index->end();
  if (map == index->end() || !map->is_object() || map->empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": weight_map must be an object of tensor names and file names"));
  }
  WeightMap files;
  for (const auto& [tensor, value] : map->items()) {
    const std::string name = value.is_string() ? value.get<std::string>() : "";
    if (!absl::EndsWith(name, ".safetensors") || name.size() > 255 ||
        name.find_first_of("/\0", 0, 2) != std::string::npos) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": weight_map of ", Quote(tensor), " = ", Show(value),
                       ": must be the name of a .safetensors file in the same folder"));
    }
    files.emplace(tensor, name);
  }
  return files;
}

// The one file of a folder without an index.
absl::StatusOr<std::string> FindSingle(const std::string& folder,
                                       const std::set<std::string>& names) {
  std::vector<std::string> found;
  std::string pytorch;
  for (const std::string& name : names) {
    if (absl::EndsWith(name, ".safetensors")) found.push_back(name);
    if (pytorch.empty() && (absl::EndsWith(name, ".bin") || absl::EndsWith(name, ".pth") ||
                            absl::EndsWith(name, ".pt"))) {
      pytorch = name;
    }
  }
  if (names.count(kSingle) != 0) return std::string(kSingle);
  if (found.size() == 1) return found[0];
  if (found.size() > 1) {
    return absl::InvalidArgumentError(
        absl::StrCat(folder, ": holds ", found.size(), " .safetensors files (", Quote(found[0]),
                     ", ...) and no ", kIndex, " that says which belong together"));
  }
  if (!pytorch.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        folder, "/", pytorch, ": pytorch files are not read; allowed: .safetensors files"));
  }
  return absl::NotFoundError(absl::StrCat(
      folder, ": holds no .safetensors file; allowed: a folder with weights, or random:", folder,
      " for seeded ones"));
}

absl::StatusOr<std::set<std::string>> ListFolder(const std::string& folder) {
  std::set<std::string> names;
  std::error_code error;
  std::filesystem::directory_iterator it(folder, error);
  for (; !error && it != std::filesystem::directory_iterator(); it.increment(error)) {
    names.insert(it->path().filename().string());
  }
  if (error) return absl::NotFoundError(absl::StrCat(folder, ": ", error.message()));
  return names;
}

// Opens `names` and merges their tensors; a name may stand in one of them only.
absl::StatusOr<WeightFiles> OpenAll(const std::string& folder, const std::set<std::string>& names) {
  WeightFiles weights;
  for (const std::string& name : names) {
    absl::StatusOr<std::unique_ptr<SafetensorsFile>> file =
        SafetensorsFile::Open(absl::StrCat(folder, "/", name));
    if (!file.ok()) return file.status();
    for (const TensorEntry& tensor : (*file)->tensors()) {
      const auto [it, is_new] =
          weights.tensors.emplace(tensor.name, FileTensor{file->get(), &tensor});
      if (!is_new) {
        return absl::InvalidArgumentError(absl::StrCat("duplicate tensor ", Quote(tensor.name),
                                                       ": in ", it->second.file->path(), " and in ",
                                                       (*file)->path()));
      }
    }
    weights.files.push_back(*std::move(file));
  }
  return weights;
}

absl::Status CheckIndex(const std::string& folder, const WeightMap& index,
                        const WeightFiles& weights) {
  const std::string path = absl::StrCat(folder, "/", kIndex);
  for (const auto& [tensor, name] : index) {
    const auto it = weights.tensors.find(tensor);
    if (it == weights.tensors.end() || it->second.file->path() != absl::StrCat(folder, "/", name)) {
      return absl::InvalidArgumentError(absl::StrCat(path, ": says that tensor ", Quote(tensor),
                                                     " is in ", name, ", which does not hold it"));
    }
  }
  for (const auto& [tensor, where] : weights.tensors) {
    if (index.count(tensor) == 0) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": does not name tensor ", Quote(tensor), " of ", where.file->path()));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<WeightFiles> OpenWeightFiles(const std::string& folder) {
  absl::StatusOr<std::set<std::string>> listed = ListFolder(folder);
  if (!listed.ok()) return listed.status();
  if (listed->count(kIndex) == 0) {
    absl::StatusOr<std::string> single = FindSingle(folder, *listed);
    if (!single.ok()) return single.status();
    return OpenAll(folder, {*single});
  }
  if (listed->count(kSingle) != 0) {
    return absl::InvalidArgumentError(absl::StrCat(folder, ": holds both ", kSingle, " and ",
                                                   kIndex, ": remove the one that is not meant"));
  }
  absl::StatusOr<WeightMap> index = ReadIndex(absl::StrCat(folder, "/", kIndex));
  if (!index.ok()) return index.status();
  std::set<std::string> names;
  for (const auto& entry : *index) names.insert(entry.second);
  if (names.size() > kMaxFiles) {
    return absl::InvalidArgumentError(absl::StrCat(folder, "/", kIndex, ": names ", names.size(),
                                                   " files; at most ", kMaxFiles, " are allowed"));
  }
  absl::StatusOr<WeightFiles> weights = OpenAll(folder, names);
  if (!weights.ok()) return weights.status();
  const absl::Status agree = CheckIndex(folder, *index, *weights);
  if (!agree.ok()) return agree;
  return weights;
}

}  // namespace regroup
