#include "engine/model/file_weights.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "engine/group/comm_status.h"
#include "engine/layout/human_text.h"
#include "engine/layout/rank_list.h"
#include "engine/zero/dtype.h"

namespace regroup {
namespace {

constexpr int64_t kConvertedAtOnce = 1 << 20;  // elements
constexpr int64_t kComparedAtOnce = 1 << 20;   // bytes
constexpr size_t kMaxListed = 1500;            // characters of a list in a message

// Names that differ only in their layer's number stand as one:
// model.layers.{0-29}.mlp.up_proj.weight.
std::string List(const std::vector<std::string>& names) {
  std::vector<std::string> patterns;  // with * for the number; in order of appearance
  std::map<std::string, std::vector<int>> numbers;
  for (const std::string& name : names) {
    std::vector<std::string> parts = absl::StrSplit(name, '.');
    int number = -1;
    for (std::string& part : parts) {
      if (part.size() > 5 || part.find_first_not_of("0123456789") != std::string::npos ||
          !absl::SimpleAtoi(part, &number)) {
        continue;
      }
      part = "*";
      break;
    }
    const std::string pattern = absl::StrJoin(parts, ".");
    if (numbers.count(pattern) == 0) patterns.push_back(pattern);
    numbers[pattern].push_back(number);
  }
  std::string out;
  for (size_t i = 0; i < patterns.size(); ++i) {
    if (out.size() > kMaxListed) {
      absl::StrAppend(&out, ", and ", patterns.size() - i, " more");
      break;
    }
    std::vector<int>& used = numbers[patterns[i]];
    std::sort(used.begin(), used.end());
    std::string name = patterns[i];
    const size_t star = name.find('*');
    if (used.front() >= 0 && star != std::string::npos) {
      const std::string range = FormatRankList(used);
      name.replace(star, 1, used.size() == 1 ? range : absl::StrCat("{", range, "}"));
    }
    absl::StrAppend(&out, i == 0 ? "" : ", ", Printable(name, kMaxShownPath));
  }
  return out;
}

std::optional<at::ScalarType> FileScalarType(const std::string& dtype) {
  if (dtype == "F32") return at::kFloat;
  if (dtype == "BF16") return at::kBFloat16;
  if (dtype == "F16") return at::kHalf;
  return std::nullopt;
}

bool Ignored(const ModelDefinition& definition, const std::string& name) {
  return std::any_of(definition.ignored_endings.begin(), definition.ignored_endings.end(),
                     [&name](const std::string& end) { return absl::EndsWith(name, end); });
}

// Also false if either can't be read any more: a file that changed is found when it is loaded.
bool SameContent(const FileTensor& a, const FileTensor& b) {
  if (a.entry->dtype != b.entry->dtype || a.entry->shape != b.entry->shape) return false;
  const int64_t size = a.entry->end - a.entry->begin;
  std::string left, right;
  for (int64_t at = 0; at < size; at += kComparedAtOnce) {
    const int64_t count = std::min(kComparedAtOnce, size - at);
    left.resize(count);
    right.resize(count);
    if (!a.file->Read(*a.entry, at, count, left.data()).ok() ||
        !b.file->Read(*b.entry, at, count, right.data()).ok() || left != right) {
      return false;
    }
  }
  return true;
}

class FileWeights : public WeightSource {
 public:
  FileWeights(const ParamTable& table, WeightFiles files, std::vector<std::string> terms)
      : files_(std::move(files)), terms_(std::move(terms)) {
    for (const Parameter& parameter : table.parameters()) {
      tensors_.push_back(files_.tensors.at(parameter.name));
    }
  }

  absl::StatusOr<at::Tensor> Read(int id, int64_t begin, int64_t end, DType dtype) override {
    const FileTensor& source = tensors_[id];
    const absl::Status unchanged = source.file->CheckUnchanged();
    if (!unchanged.ok()) return WithReason(unchanged, "DATA");
    at::Tensor value;
    const absl::Status done = CatchStatus(absl::StrCat("read ", source.file->path()), [&] {
      return Convert(source, begin, end, ToScalarType(dtype), &value);
    });
    if (!done.ok()) return done;
    return value;
  }

  std::vector<std::string> ContentTerms() const override { return terms_; }

 private:
  static absl::Status Convert(const FileTensor& source, int64_t begin, int64_t end,
                              at::ScalarType dtype, at::Tensor* out) {
    const at::ScalarType stored = *FileScalarType(source.entry->dtype);
    const auto size = static_cast<int64_t>(c10::elementSize(stored));
    const at::Tensor value = *out = at::empty({end - begin}, dtype);
    if (stored == dtype) {
      return source.file->Read(*source.entry, begin * size, (end - begin) * size,
                               static_cast<char*>(value.data_ptr()));
    }
    const at::Tensor piece = at::empty({std::min(kConvertedAtOnce, end - begin)}, stored);
    for (int64_t done = 0; done < end - begin; done += kConvertedAtOnce) {
      const int64_t count = std::min(kConvertedAtOnce, end - begin - done);
      absl::Status read = source.file->Read(*source.entry, (begin + done) * size, count * size,
                                            static_cast<char*>(piece.data_ptr()));
      if (!read.ok()) return read;
      value.narrow(0, done, count).copy_(piece.narrow(0, 0, count));
    }
    return absl::OkStatus();
  }

  WeightFiles files_;
  std::vector<FileTensor> tensors_;  // by parameter id
  std::vector<std::string> terms_;
};

}  // namespace

absl::Status CheckTensors(const ModelDefinition& definition, const WeightFiles& files,
                          const std::string& folder) {
  const ParamTable& table = definition.model->table();
  std::vector<std::string> missing, unexpected, misshaped, untyped, unequal;
  for (const Parameter& parameter : table.parameters()) {
    const auto it = files.tensors.find(parameter.name);
    if (it == files.tensors.end()) {
      missing.push_back(parameter.name);
      continue;
    }
    const TensorEntry& entry = *it->second.entry;
    if (entry.shape != parameter.shape) {
      misshaped.push_back(absl::StrCat(parameter.name, " is [", absl::StrJoin(entry.shape, ", "),
                                       "], must be [", absl::StrJoin(parameter.shape, ", "), "]"));
    }
    if (!FileScalarType(entry.dtype).has_value()) {
      untyped.push_back(absl::StrCat(parameter.name, " is ", entry.dtype));
    }
  }
  for (const auto& [name, tensor] : files.tensors) {
    if (table.Find(name) != nullptr || Ignored(definition, name)) continue;
    const auto copy = definition.copies.find(name);
    if (copy == definition.copies.end()) {
      unexpected.push_back(name);
      continue;
    }
    const auto original = files.tensors.find(copy->second);
    if (original != files.tensors.end() && !SameContent(tensor, original->second)) {
      unequal.push_back(
          absl::StrCat(name, " differs from ", copy->second, ", to which it is tied"));
    }
  }
  std::vector<std::string> problems;
  const auto report = [&problems](const std::vector<std::string>& names, const char* what) {
    if (names.empty()) return;
    problems.push_back(absl::StrCat(names.size(), " ", what,
                                    names.size() == 1 ? " tensor: " : " tensors: ", List(names)));
  };
  report(missing, "missing");
  report(unexpected, "unexpected");
  report(misshaped, "mis-shaped");
  report(untyped, "unusable (allowed dtypes: F32, BF16, F16)");
  report(unequal, "unequal");
  if (problems.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(folder, ": the weights do not fit the config: ", absl::StrJoin(problems, "; ")));
}

absl::StatusOr<DType> DecideDType(const ParamTable& table, const WeightFiles& files,
                                  std::optional<DType> requested, const std::string& folder) {
  std::set<std::string> found;
  for (const Parameter& parameter : table.parameters()) {
    const std::string& dtype = files.tensors.at(parameter.name).entry->dtype;
    found.insert(dtype == "F32" ? "fp32" : dtype == "BF16" ? "bf16" : "fp16");
  }
  if (requested.has_value()) return *requested;  // the caller refused what it can't be
  if (found == std::set<std::string>{"fp32"}) return DType::kFp32;
  if (found == std::set<std::string>{"bf16"}) return DType::kBf16;
  if (found == std::set<std::string>{"fp16"}) return DType::kFp16;
  return absl::UnimplementedError(absl::StrCat(
      "not available in this version: engines in the dtype of their files, where that is ",
      absl::StrJoin(found, " and "), " (", folder,
      "); pass --dtype=fp32, bf16 or fp16 to convert them"));
}

std::unique_ptr<WeightSource> MakeFileWeights(const ParamTable& table, WeightFiles files,
                                              const std::string& config_digest) {
  std::vector<std::string> terms = {config_digest};
  for (const std::unique_ptr<SafetensorsFile>& file : files.files) {
    const std::string& path = file->path();
    terms.push_back(absl::StrFormat("%s: %d bytes, header %016x", path.substr(path.rfind('/') + 1),
                                    file->size(), file->header_digest()));
  }
  return std::make_unique<FileWeights>(table, std::move(files), std::move(terms));
}

}  // namespace regroup
