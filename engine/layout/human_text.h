// Counts as people read them and text as it came from outside, the same in every message.
#ifndef ENGINE_LAYOUT_HUMAN_TEXT_H_
#define ENGINE_LAYOUT_HUMAN_TEXT_H_

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace regroup {

// Decimal units: "0 B", "999 B", "1.0 kB", "538.1 MB".
std::string HumanBytes(int64_t bytes);

// "7", "999", "1.0 k", "134.5 M".
std::string HumanCount(int64_t count);

// Bytes of a path that a message shows at most.
constexpr size_t kMaxShownPath = 400;

// What came from outside, safe to print in one line and of bounded length: quotes, backslashes,
// control characters and bytes that are no UTF-8 are escaped as in C, and what is longer than
// `most` bytes is cut at a character and ends with "...". The result is UTF-8.
std::string Printable(absl::string_view text, size_t most = 200);

}  // namespace regroup

#endif  // ENGINE_LAYOUT_HUMAN_TEXT_H_
