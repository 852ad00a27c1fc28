// Counts as people read them, the same in every message.
#ifndef ENGINE_LAYOUT_HUMAN_TEXT_H_
#define ENGINE_LAYOUT_HUMAN_TEXT_H_

#include <cstdint>
#include <string>

namespace regroup {

// Decimal units: "0 B", "999 B", "1.0 kB", "538.1 MB".
std::string HumanBytes(int64_t bytes);

// "7", "999", "1.0 k", "134.5 M".
std::string HumanCount(int64_t count);

}  // namespace regroup

#endif  // ENGINE_LAYOUT_HUMAN_TEXT_H_
