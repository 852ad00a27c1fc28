#include "engine/model/hf_config.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "engine/model/input_file.h"
#include "engine/model/strict_json.h"

namespace regroup {
namespace {

using nlohmann::json;

constexpr int64_t kMaxConfigBytes = 256 << 10;

}  // namespace

bool ReadInteger(const json& value, int64_t min, int64_t max, int64_t* out) {
  if (!value.is_number_integer()) return false;
  if (value.is_number_unsigned() && value.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX)) {
    return false;
  }
  *out = value.get<int64_t>();
  return *out >= min && *out <= max;
}

absl::StatusOr<ConfigFile> ParseConfigFile(std::string path, std::string text) {
  absl::StatusOr<json> fields = ParseStrictJson(text, path);
  if (!fields.ok()) return fields.status();
  if (!fields->is_object()) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": must be a JSON object"));
  }
  const auto type = fields->find("model_type");
  if (type == fields->end() || !type->is_string()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": model_type ",
                     type == fields->end() ? "is missing" : absl::StrCat("= ", Show(*type)),
                     ": must be a string"));
  }
  ConfigFile config;
  config.model_type = type->get<std::string>();
  config.path = std::move(path);
  config.text = std::move(text);
  config.fields = *std::move(fields);
  return config;
}

absl::StatusOr<ConfigFile> ReadConfigFile(const std::string& folder) {
  const std::string path = absl::StrCat(folder, "/config.json");
  absl::StatusOr<std::string> text = ReadSmallFile(path, kMaxConfigBytes);
  if (!text.ok()) return text.status();
  return ParseConfigFile(path, *std::move(text));
}

absl::StatusOr<std::optional<DType>> ConfiguredDType(const ConfigFile& config) {
  ConfigReader reader(config);
  std::optional<DType> dtype;
  for (const char* field : {"torch_dtype", "dtype"}) {
    const json* value = reader.Find(field);
    if (value == nullptr) continue;
    if (*value == "float32") {
      dtype = DType::kFp32;
    } else if (*value == "bfloat16") {
      dtype = DType::kBf16;
    } else if (*value == "float16") {
      dtype = DType::kFp16;
    } else {
      reader.NotAvailable(field, *value, "\"float32\", \"bfloat16\", \"float16\"");
    }
  }
  if (!reader.status().ok()) return reader.status();
  return dtype;
}

const json* ConfigReader::Find(const char* field) const {
  const auto it = config_.fields.find(field);
  return it == config_.fields.end() || it->is_null() ? nullptr : &*it;
}

void ConfigReader::Invalid(absl::string_view field, const json& value, absl::string_view allowed) {
  if (!status_.ok()) return;
  status_ = absl::InvalidArgumentError(
      absl::StrCat(config_.path, ": ", field, " = ", Show(value), ": must be ", allowed));
}

void ConfigReader::Missing(absl::string_view field, absl::string_view allowed) {
  if (!status_.ok()) return;
  status_ = absl::InvalidArgumentError(
      absl::StrCat(config_.path, ": ", field, " is missing: must be ", allowed));
}

void ConfigReader::NotAvailable(absl::string_view field, const json& value,
                                absl::string_view allowed) {
  if (!status_.ok()) return;
  status_ = absl::UnimplementedError(absl::StrCat("not available in this version: ", field, " = ",
                                                  Show(value), " in ", config_.path,
                                                  "; allowed: ", allowed));
}

int64_t ConfigReader::Integer(const char* field, int64_t min, int64_t max,
                              std::optional<int64_t> absent) {
  const json* value = Find(field);
  if (value == nullptr && absent.has_value()) return *absent;
  int64_t out = 0;
  const std::string allowed = absl::StrCat("an integer from ", min, " to ", max);
  if (value == nullptr) {
    Missing(field, allowed);
  } else if (!ReadInteger(*value, min, max, &out)) {
    Invalid(field, *value, allowed);
  }
  return status_.ok() ? out : min;
}

double ConfigReader::Number(const char* field, double min, double max,
                            std::optional<double> absent) {
  const json* value = Find(field);
  if (value == nullptr && absent.has_value()) return *absent;
  const std::string allowed = absl::StrFormat("a number from %g to %g", min, max);
  if (value == nullptr) {
    Missing(field, allowed);
  } else if (!value->is_number() || !(value->get<double>() >= min && value->get<double>() <= max)) {
    Invalid(field, *value, allowed);
  }
  return status_.ok() ? value->get<double>() : min;
}

bool ConfigReader::Boolean(const char* field, bool absent) {
  const json* value = Find(field);
  if (value == nullptr) return absent;
  if (!value->is_boolean()) {
    Invalid(field, *value, "true or false");
    return absent;
  }
  return value->get<bool>();
}

}  // namespace regroup
