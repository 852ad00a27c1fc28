// Lines of *.jsonl files, a JSON object each.
#ifndef ENGINE_DATA_JSON_LINES_H_
#define ENGINE_DATA_JSON_LINES_H_

#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "engine/model/input_file.h"

namespace regroup {

struct JsonLinesOptions {
  int64_t max_line = 0;             // bytes: parsing needs many times the memory of the text
  std::string max_line_for;         // what that is enough for, e.g. "2 + 1 numbers"
  std::vector<std::string> fields;  // what an object may hold
  std::string example;              // of an object
};

// Calls `row` with each line's object and the beginning of messages about it ("--data=FILE: line 3:
// "); the first error ends it. Holds a piece of the file at a time. Errors: those of `row`;
// INVALID_ARGUMENT naming --data, the line and what is allowed (an empty file or one above 1 GiB, a
// line that is too long, no JSON, no object or has an unknown field); DATA_LOSS.
absl::Status ForEachJsonLine(
    const InputFile& file, const JsonLinesOptions& options,
    const std::function<absl::Status(const nlohmann::json& row, const std::string& where)>& row);

}  // namespace regroup

#endif  // ENGINE_DATA_JSON_LINES_H_
