// Prompts out of a file: one JSON array of token ids a line.
#ifndef CLIENT_PROMPTS_H_
#define CLIENT_PROMPTS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace regroup {

inline constexpr int32_t kMaxToken = 2147483647;

// What one request takes.
inline constexpr int64_t kMaxPromptFileBytes = int64_t{48} << 20;
inline constexpr int64_t kMaxPrompts = 4096;

// Reads the prompts of `path`, in order. A file may end with or without a line's end.
// Errors: INVALID_ARGUMENT, naming the line (from 1) and what is allowed: the file can't be read,
// is too large, or is empty; a line is empty, is not an array, or has an item that is not an
// integer in 0..kMaxToken; there are too many lines.
absl::StatusOr<std::vector<std::vector<int32_t>>> ReadPrompts(const std::string& path);

}  // namespace regroup

#endif  // CLIENT_PROMPTS_H_
