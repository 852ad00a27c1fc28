// Numbers as people read them.
#ifndef CLIENT_HUMAN_H_
#define CLIENT_HUMAN_H_

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "engine/layout/human_text.h"

namespace regroup {

// "0.04 s", "3.1 s", "4 min 05 s", "2 h 03 min". "?" if it is negative or not finite.
std::string HumanSeconds(double seconds);

// "1 rank", "2 ranks".
std::string Plural(int64_t count, absl::string_view noun);

// `fraction` (clamped to 0..1) of `cells` filled: "██████░░░░".
std::string Bar(double fraction, int cells);

// A number with `digits` significant digits, "-" if it is not finite.
std::string Significant(double value, int digits);

}  // namespace regroup

#endif  // CLIENT_HUMAN_H_
