// config.json as transformers 4 and 5 write it.
#ifndef ENGINE_MODEL_HF_CONFIG_H_
#define ENGINE_MODEL_HF_CONFIG_H_

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/layout/param_table.h"

namespace regroup {

struct ConfigFile {
  std::string path;  // for messages
  std::string text;
  nlohmann::json fields;  // an object
  std::string model_type;
};

// Reads FOLDER/config.json. Errors: NOT_FOUND, INVALID_ARGUMENT (above 256 KiB, not a JSON object,
// a duplicate key, no model_type).
absl::StatusOr<ConfigFile> ReadConfigFile(const std::string& folder);

// As above from `text`; `path` is for messages.
absl::StatusOr<ConfigFile> ParseConfigFile(std::string path, std::string text);

// The dtype that the config names (`dtype` or `torch_dtype`); nullopt if none. Files of weights
// decide over it. Errors: INVALID_ARGUMENT, UNIMPLEMENTED (another dtype).
absl::StatusOr<std::optional<DType>> ConfiguredDType(const ConfigFile& config);

// Whether `value` is an integer from `min` to `max`; then `out` is it.
bool ReadInteger(const nlohmann::json& value, int64_t min, int64_t max, int64_t* out);

// Reads fields of one config, each with its bounds. The first error stays in status(); after it the
// values returned mean nothing. A null counts as absent.
class ConfigReader {
 public:
  // `config` outlives the reader.
  explicit ConfigReader(const ConfigFile& config) : config_(config) {}

  // `absent` is the value of a field that is not there; nullopt: the field is required.
  int64_t Integer(const char* field, int64_t min, int64_t max, std::optional<int64_t> absent);
  double Number(const char* field, double min, double max, std::optional<double> absent);
  bool Boolean(const char* field, bool absent);

  // nullptr if the field is absent or null.
  const nlohmann::json* Find(const char* field) const;

  // Records INVALID_ARGUMENT "PATH: FIELD = VALUE: must be ALLOWED".
  void Invalid(absl::string_view field, const nlohmann::json& value, absl::string_view allowed);

  // Records UNIMPLEMENTED "not available in this version: FIELD = VALUE in PATH; allowed: ALLOWED".
  void NotAvailable(absl::string_view field, const nlohmann::json& value,
                    absl::string_view allowed);

  // Records INVALID_ARGUMENT "PATH: FIELD is missing: must be ALLOWED".
  void Missing(absl::string_view field, absl::string_view allowed);

  const absl::Status& status() const { return status_; }

 private:
  const ConfigFile& config_;
  absl::Status status_;
};

}  // namespace regroup

#endif  // ENGINE_MODEL_HF_CONFIG_H_
