#include "engine/layout/param_table.h"

#include <cstdio>
#include <cstdlib>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace regroup {
namespace {

// For what only a bug of a model family can cause.
void Require(bool condition, absl::string_view what, absl::string_view name) {
  if (condition) return;
  std::fprintf(stderr, "parameter table: %s: %s\n", std::string(what).c_str(),
               std::string(name).c_str());
  std::abort();
}

}  // namespace

const char* DTypeName(DType dtype) {
  switch (dtype) {
    case DType::kFp32:
      return "fp32";
    case DType::kBf16:
      return "bf16";
    case DType::kFp16:
      return "fp16";
  }
  return "?";
}

absl::StatusOr<DType> ParseDType(absl::string_view name) {
  for (DType dtype : {DType::kFp32, DType::kBf16, DType::kFp16}) {
    if (name == DTypeName(dtype)) return dtype;
  }
  return absl::InvalidArgumentError(absl::StrCat("dtype \"", absl::CHexEscape(name.substr(0, 40)),
                                                 "\" is not known; allowed: fp32, bf16, fp16"));
}

int64_t DTypeBytes(DType dtype) { return dtype == DType::kFp32 ? 4 : 2; }

int ParamTable::AddUnit(std::string name, std::string group) {
  Unit unit;
  unit.id = static_cast<int>(units_.size());
  unit.name = std::move(name);
  unit.group = std::move(group);
  units_.push_back(std::move(unit));
  return units_.back().id;
}

int ParamTable::AddParameter(std::string name, std::vector<int64_t> shape) {
  Require(!units_.empty(), "a parameter needs a unit", name);
  Parameter parameter;
  parameter.id = static_cast<int>(parameters_.size());
  Require(by_name_.emplace(name, parameter.id).second, "a name is used twice", name);
  parameter.name = std::move(name);
  parameter.shape = std::move(shape);
  parameter.numel = 1;
  for (int64_t extent : parameter.shape) parameter.numel *= extent;
  Unit& unit = units_.back();
  parameter.unit = unit.id;
  parameter.offset = unit.numel;
  unit.parameters.push_back(parameter.id);
  unit.numel += parameter.numel;
  total_numel_ += parameter.numel;
  parameters_.push_back(std::move(parameter));
  return parameters_.back().id;
}

const Parameter* ParamTable::Find(absl::string_view name) const {
  const auto it = by_name_.find(name);
  return it == by_name_.end() ? nullptr : &parameters_[it->second];
}

std::vector<std::string> ParamTable::Describe() const {
  std::vector<std::string> lines;
  lines.reserve(parameters_.size());
  for (const Parameter& parameter : parameters_) {
    const Unit& unit = units_[parameter.unit];
    lines.push_back(absl::StrCat(parameter.id, " ", parameter.name, " [",
                                 absl::StrJoin(parameter.shape, ", "), "] ", DTypeName(dtype_),
                                 " unit ", unit.id, " group ", unit.group));
  }
  return lines;
}

}  // namespace regroup
