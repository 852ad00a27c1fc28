#include "engine/layout/rank_list.h"

#include <optional>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace regroup {
namespace {

// What the user typed, safe to print and of bounded length.
std::string Quoted(absl::string_view text) {
  constexpr size_t kMost = 40;
  const bool cut = text.size() > kMost;
  return absl::StrCat("\"", absl::CHexEscape(text.substr(0, kMost)), cut ? "...\"" : "\"");
}

absl::Status BadItem(absl::string_view list, absl::string_view item, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat(
      "rank list ", Quoted(list), ": item ", Quoted(item), " ", what, "; allowed: ranks 0 to ",
      kMaxRank, " and ranges like 0-3, separated by commas, each rank once"));
}

enum class NumberError { kNone, kEmpty, kNotDigits, kTooLarge };

NumberError ParseRank(absl::string_view text, int* rank) {
  if (text.empty()) return NumberError::kEmpty;
  int value = 0;
  for (char c : text) {
    if (!absl::ascii_isdigit(static_cast<unsigned char>(c))) return NumberError::kNotDigits;
    // Past the bound the digits are only checked, so that no length of text overflows.
    if (value <= kMaxRank) value = value * 10 + (c - '0');
  }
  if (value > kMaxRank) return NumberError::kTooLarge;
  *rank = value;
  return NumberError::kNone;
}

absl::string_view Explain(NumberError error) {
  switch (error) {
    case NumberError::kNone:
      return "";
    case NumberError::kEmpty:
      return "lacks a number";
    case NumberError::kNotDigits:
      return "is not made of digits";
    case NumberError::kTooLarge:
      return "is above the largest rank";
  }
  return "";
}

}  // namespace

absl::StatusOr<std::vector<int>> ParseRankList(absl::string_view text) {
  if (text.empty()) return BadItem(text, text, "is empty");
  std::vector<int> ranks;
  std::vector<bool> seen;  // by rank, up to the largest so far
  for (absl::string_view item : absl::StrSplit(text, ',')) {
    if (item.empty()) return BadItem(text, item, "is empty");
    const std::pair<absl::string_view, absl::string_view> ends =
        absl::StrSplit(item, absl::MaxSplits('-', 1));
    const bool is_range = absl::StrContains(item, '-');
    int first = 0;
    NumberError error = ParseRank(ends.first, &first);
    int last = first;
    if (error == NumberError::kNone && is_range) error = ParseRank(ends.second, &last);
    if (error != NumberError::kNone) return BadItem(text, item, Explain(error));
    if (last < first) return BadItem(text, item, "is a reversed range");
    if (static_cast<size_t>(last) >= seen.size()) seen.resize(last + 1);
    for (int rank = first; rank <= last; ++rank) {
      if (seen[rank]) {
        return BadItem(text, item, absl::StrCat("gives rank ", rank, " a second time"));
      }
      seen[rank] = true;
      ranks.push_back(rank);
    }
  }
  return ranks;
}

std::string FormatRankList(absl::Span<const int> ranks) {
  std::string text;
  for (size_t first = 0; first < ranks.size();) {
    size_t last = first;
    while (last + 1 < ranks.size() && ranks[last + 1] == ranks[last] + 1) ++last;
    absl::StrAppend(&text, text.empty() ? "" : ",", ranks[first]);
    if (last > first) absl::StrAppend(&text, "-", ranks[last]);
    first = last + 1;
  }
  return text;
}

}  // namespace regroup
