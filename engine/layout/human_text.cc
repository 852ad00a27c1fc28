#include "engine/layout/human_text.h"

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

}  // namespace

std::string HumanBytes(int64_t bytes) { return Scaled(bytes, "B"); }

std::string HumanCount(int64_t count) { return Scaled(count, ""); }

std::string Printable(absl::string_view text, size_t most) {
  return absl::StrCat(absl::CHexEscape(text.substr(0, most)), text.size() > most ? "..." : "");
}

}  // namespace regroup
