// JSON of files that users name: what is ambiguous is an error.
#ifndef ENGINE_MODEL_STRICT_JSON_H_
#define ENGINE_MODEL_STRICT_JSON_H_

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace regroup {

// Parses one JSON text. Errors: INVALID_ARGUMENT starting with `what`: not JSON (with the
// position), a key that is twice in one object, nesting above 32 levels.
absl::StatusOr<nlohmann::json> ParseStrictJson(absl::string_view text, absl::string_view what);

// `text`, which comes from outside, in double quotes for a message: escaped, and cut after 100
// bytes.
std::string Quote(absl::string_view text);

// A value for a message, cut after 100 bytes.
std::string Show(const nlohmann::json& value);

}  // namespace regroup

#endif  // ENGINE_MODEL_STRICT_JSON_H_
