#include "engine/layout/human_text.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"

namespace regroup {
namespace {

std::string Scaled(int64_t value, absl::string_view unit) {
  static constexpr const char* kPrefixes[] = {"", "k", "M", "G", "T", "P", "E"};
  double scaled = static_cast<double>(value);
  int prefix = 0;
  // 999.95 would be printed as 1000.0.
  while (std::abs(scaled) >= (prefix == 0 ? 1000 : 999.95)) {
    scaled /= 1000;
    ++prefix;
  }
  const std::string ending = absl::StrCat(kPrefixes[prefix], unit);
  if (prefix == 0) {
    return ending.empty() ? absl::StrCat(value) : absl::StrCat(value, " ", ending);
  }
  return absl::StrFormat("%.1f %s", scaled, ending);
}

// How many bytes the character that `text` begins with takes; 0 if they are no UTF-8 (RFC 3629,
// section 4), or are control characters of Latin-1.
size_t Utf8Character(absl::string_view text) {
  const auto byte = [text](size_t i) {
    return i < text.size() ? static_cast<unsigned char>(text[i]) : 0U;
  };
  const unsigned first = byte(0);
  if (first < 0x80) return 1;
  const size_t size = first < 0xc2 ? 0 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : first < 0xf5 ? 4 : 0;
  for (size_t i = 1; i < size; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
  }
  const bool overlong = (first == 0xe0 && byte(1) < 0xa0) || (first == 0xf0 && byte(1) < 0x90);
  const bool surrogate = first == 0xed && byte(1) >= 0xa0;
  const bool too_large = first == 0xf4 && byte(1) >= 0x90;
  const bool control = first == 0xc2 && byte(1) < 0xa0;
  return overlong || surrogate || too_large || control ? 0 : size;
}

}  // namespace

std::string HumanBytes(int64_t bytes) { return Scaled(bytes, "B"); }

std::string HumanCount(int64_t count) { return Scaled(count, ""); }

std::string Printable(absl::string_view text, size_t most) {
  std::string shown;
  size_t next = 0;
  while (next < text.size()) {
    const size_t character = Utf8Character(text.substr(next));
    const size_t size = std::max<size_t>(character, 1);
    if (next + size > most) return absl::StrCat(shown, "...");
    const absl::string_view bytes = text.substr(next, size);
    absl::StrAppend(&shown, character > 1 ? std::string(bytes) : absl::CHexEscape(bytes));
    next += size;
  }
  return shown;
}

}  // namespace regroup
