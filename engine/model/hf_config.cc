#include "engine/model/hf_config.h"

#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "engine/model/input_file.h"
#include "engine/model/strict_json.h"

namespace regroup {
namespace {

using nlohmann::json;

constexpr int64_t kMaxConfigBytes = 256 << 10;

// Far above any model that exists, and small enough that products of them fit into 63 bits.
constexpr int64_t kMaxVocab = 16 << 20;
constexpr int64_t kMaxHidden = 1 << 18;
constexpr int64_t kMaxIntermediate = 1 << 20;
constexpr int64_t kMaxLayers = 10000;
constexpr int64_t kMaxHeads = 4096;
constexpr int64_t kMaxHeadDim = 4096;
constexpr int64_t kMaxPositions = 16 << 20;

bool AsInteger(const json& value, int64_t min, int64_t max, int64_t* out) {
  if (!value.is_number_integer()) return false;
  if (value.is_number_unsigned() && value.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX)) {
    return false;
  }
  *out = value.get<int64_t>();
  return *out >= min && *out <= max;
}

std::vector<int64_t> ReadEos(const ConfigFile& config, int64_t vocab_size, ConfigReader* reader) {
  const auto it = config.fields.find("eos_token_id");
  if (it == config.fields.end()) {
    // transformers' default for the family.
    return vocab_size > 2 ? std::vector<int64_t>{2} : std::vector<int64_t>{};
  }
  std::vector<int64_t> tokens;
  if (it->is_null()) return tokens;
  const json list = it->is_array() ? *it : json::array({*it});
  for (const json& value : list) {
    int64_t token = 0;
    if (list.size() > 1024 || !AsInteger(value, 0, vocab_size - 1, &token)) {
      reader->Invalid(
          "eos_token_id", *it,
          absl::StrCat("a token or a list of at most 1024 tokens from 0 to ", vocab_size - 1));
      break;
    }
    tokens.push_back(token);
  }
  return tokens;
}

// `rope` is rope_scaling or rope_parameters.
void CheckRope(const char* field, const json& rope, double* theta, ConfigReader* reader) {
  if (!rope.is_object()) {
    reader->Invalid(field, rope, "an object or null");
    return;
  }
  for (const auto& [key, value] : rope.items()) {
    const std::string name = absl::StrCat(field, ".", key);
    if (key == "rope_type" || key == "type") {
      if (value != "default") reader->NotAvailable(name, value, "\"default\"");
    } else if (key == "rope_theta") {
      const bool valid =
          value.is_number() && value.get<double>() > 0 && value.get<double>() <= 1e15;
      if (valid) {
        *theta = value.get<double>();
      } else {
        reader->Invalid(name, value, "a number above 0, at most 1e+15");
      }
    } else if (key == "partial_rotary_factor") {
      if (!value.is_number() || value.get<double>() != 1) reader->NotAvailable(name, value, "1");
    } else if (value.is_structured()) {
      reader->NotAvailable(name, value, "rope_type \"default\" for all layers");
    }
  }
}

}  // namespace

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
  } else if (!AsInteger(*value, min, max, &out)) {
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

absl::StatusOr<LlamaConfig> ParseLlamaConfig(const ConfigFile& file) {
  ConfigReader reader(file);
  LlamaConfig config;
  config.vocab_size = reader.Integer("vocab_size", 1, kMaxVocab, std::nullopt);
  config.hidden_size = reader.Integer("hidden_size", 1, kMaxHidden, std::nullopt);
  config.intermediate_size = reader.Integer("intermediate_size", 1, kMaxIntermediate, std::nullopt);
  config.num_layers = reader.Integer("num_hidden_layers", 1, kMaxLayers, std::nullopt);
  config.num_heads = reader.Integer("num_attention_heads", 1, kMaxHeads, std::nullopt);
  config.num_kv_heads = reader.Integer("num_key_value_heads", 1, kMaxHeads, config.num_heads);
  config.max_positions = reader.Integer("max_position_embeddings", 1, kMaxPositions, 2048);
  config.rms_norm_eps = reader.Number("rms_norm_eps", 0, 1, 1e-6);
  config.initializer_range = reader.Number("initializer_range", 0, 100, 0.02);
  config.tie_word_embeddings = reader.Boolean("tie_word_embeddings", false);
  if (config.num_heads % config.num_kv_heads != 0) {
    reader.Invalid("num_key_value_heads", config.num_kv_heads,
                   absl::StrCat("a divisor of num_attention_heads = ", config.num_heads));
  }
  if (reader.Find("head_dim") == nullptr && config.hidden_size % config.num_heads != 0) {
    reader.Invalid("hidden_size", config.hidden_size,
                   absl::StrCat("a multiple of num_attention_heads = ", config.num_heads,
                                ", or head_dim be given"));
  }
  config.head_dim =
      reader.Integer("head_dim", 1, kMaxHeadDim, config.hidden_size / config.num_heads);
  if (config.head_dim % 2 != 0 || config.head_dim < 1 || config.head_dim > kMaxHeadDim) {
    reader.Invalid("head_dim", config.head_dim, absl::StrCat("even, from 2 to ", kMaxHeadDim));
  }
  for (const char* field : {"attention_bias", "mlp_bias"}) {
    if (reader.Boolean(field, false)) reader.NotAvailable(field, true, "false");
  }
  const json* activation = reader.Find("hidden_act");
  if (activation != nullptr && *activation != "silu") {
    reader.NotAvailable("hidden_act", *activation, "\"silu\"");
  }
  const double dropout = reader.Number("attention_dropout", 0, 1, 0.0);
  if (dropout != 0) reader.NotAvailable("attention_dropout", dropout, "0");
  const double rotated = reader.Number("partial_rotary_factor", 0, 1, 1.0);
  if (rotated != 1) reader.NotAvailable("partial_rotary_factor", rotated, "1");
  const json* quantization = reader.Find("quantization_config");
  if (quantization != nullptr) {
    reader.NotAvailable("quantization_config", *quantization, "none");
  }
  config.rope_theta = reader.Number("rope_theta", 1e-6, 1e15, 10000.0);
  for (const char* field : {"rope_scaling", "rope_parameters"}) {
    const json* rope = reader.Find(field);
    if (rope != nullptr) CheckRope(field, *rope, &config.rope_theta, &reader);
  }
  config.eos_tokens = ReadEos(file, config.vocab_size, &reader);
  if (!reader.status().ok()) return reader.status();
  return config;
}

}  // namespace regroup
