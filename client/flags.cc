#include "client/flags.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>

#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "client/errors.h"
#include "client/prompts.h"
#include "engine/layout/rank_list.h"

namespace regroup {
namespace {

constexpr size_t kMaxNumberLength = 40;
constexpr size_t kMaxNameLength = 63;
constexpr size_t kMaxPathLength = 4096;
constexpr absl::string_view kRandomPrefix = "random:";
constexpr absl::string_view kMlpPrefix = "mlp:";

bool AllDigits(absl::string_view text) {
  return !text.empty() && text.size() <= kMaxNumberLength &&
         std::all_of(text.begin(), text.end(), [](char c) { return absl::ascii_isdigit(c); });
}

// absl::SimpleAtod also takes blanks, "inf" and "nan", and turns 1e-400 into 0.
bool ParseDecimal(absl::string_view text, double* value) {
  const auto allowed = [](char c) {
    return absl::ascii_isdigit(c) || absl::StrContains("+-.eE", absl::string_view(&c, 1));
  };
  if (text.empty() || text.size() > kMaxNumberLength ||
      !std::all_of(text.begin(), text.end(), allowed) || !absl::SimpleAtod(text, value)) {
    return false;
  }
  const absl::string_view mantissa = text.substr(0, text.find_first_of("eE"));
  const bool vanished = *value == 0 && mantissa.find_first_of("123456789") != text.npos;
  return std::isfinite(*value) && !vanished;
}

bool IsNameCharacter(char c) { return absl::ascii_isalnum(c) || c == '.' || c == '_' || c == '-'; }

bool IsName(absl::string_view text) {
  return !text.empty() && text.size() <= kMaxNameLength && absl::ascii_isalnum(text.front()) &&
         std::all_of(text.begin(), text.end(), IsNameCharacter);
}

}  // namespace

void FlagReader::Fail(const absl::Status& error) {
  if (status_.ok()) status_ = error;
}

void FlagReader::Wrong(absl::string_view flag, absl::string_view text, absl::string_view allowed) {
  Fail(UsageError(flag, text, allowed));
}

int64_t FlagReader::Int(absl::string_view flag, absl::string_view text, int64_t min, int64_t max) {
  absl::string_view digits = text;
  if (min < 0) absl::ConsumePrefix(&digits, "-");
  int64_t value = 0;
  if (!AllDigits(digits) || !absl::SimpleAtoi(text, &value) || value < min || value > max) {
    Wrong(flag, text, absl::StrCat("an integer in ", min, "..", max));
    return 0;
  }
  return value;
}

uint64_t FlagReader::Seed(absl::string_view flag, absl::string_view text) {
  uint64_t value = 0;
  if (!AllDigits(text) || !absl::SimpleAtoi(text, &value)) {
    Wrong(flag, text, absl::StrCat("an integer in 0..", std::numeric_limits<uint64_t>::max()));
    return 0;
  }
  return value;
}

double FlagReader::Number(absl::string_view flag, absl::string_view text,
                          const NumberRange& range) {
  double value = 0;
  if (ParseDecimal(text, &value) && (range.above_min ? value > range.min : value >= range.min) &&
      (range.below_max ? value < range.max : value <= range.max)) {
    return value;
  }
  std::string allowed =
      absl::StrCat("a finite number, ", range.above_min ? "above " : "at least ", range.min);
  if (std::isfinite(range.max)) {
    absl::StrAppend(&allowed, " and ", range.below_max ? "below " : "at most ", range.max);
  }
  Wrong(flag, text, allowed);
  return 0;
}

absl::Duration FlagReader::Timeout(absl::string_view flag, absl::string_view text) {
  absl::Duration value;
  if (text.size() > kMaxNumberLength || !absl::ParseDuration(text, &value) ||
      value < absl::Seconds(1) || value > absl::Hours(1)) {
    Wrong(flag, text, "a number with a unit (ms, s, m, h), 1s to 1h");
    return absl::ZeroDuration();
  }
  return value;
}

std::string FlagReader::Name(absl::string_view flag, absl::string_view text) {
  if (!IsName(text)) {
    Wrong(flag, text, "1 to 63 letters, digits, '.', '_' or '-', the first a letter or digit");
    return "";
  }
  return std::string(text);
}

std::string FlagReader::OperationId(absl::string_view flag, absl::string_view text) {
  if (!IsName(text)) {
    Wrong(flag, text, "the id of an operation (see regroupctl operation list)");
    return "";
  }
  return std::string(text);
}

std::vector<int> FlagReader::Ranks(absl::string_view flag, absl::string_view text) {
  absl::StatusOr<std::vector<int>> ranks = ParseRankList(text);
  if (ranks.ok()) return *std::move(ranks);
  Fail(UsageError(absl::StrCat(flag, ": ", ranks.status().message())));
  return {};
}

std::vector<int32_t> FlagReader::Tokens(absl::string_view flag, absl::string_view text) {
  std::vector<int32_t> tokens;
  for (const absl::string_view item : absl::StrSplit(text, ',')) {
    int32_t token = 0;
    if (!AllDigits(item) || !absl::SimpleAtoi(item, &token)) {
      Wrong(flag, text,
            absl::StrCat("token ids in 0..", kMaxToken, " separated by commas; \"",
                         item.substr(0, kMaxNumberLength), "\" is none"));
      return {};
    }
    tokens.push_back(token);
  }
  return tokens;
}

std::vector<std::vector<int32_t>> FlagReader::TokensFile(absl::string_view flag,
                                                         const std::string& path) {
  absl::StatusOr<std::vector<std::vector<int32_t>>> prompts = ReadPrompts(path);
  if (prompts.ok()) return *std::move(prompts);
  Fail(UsageError(absl::StrCat(flag, "=", path, ": ", prompts.status().message())));
  return {};
}

std::string FlagReader::Path(absl::string_view flag, absl::string_view text) {
  std::error_code error;
  std::filesystem::path path;
  if (!text.empty() && text.size() <= kMaxPathLength) {
    path = std::filesystem::absolute(std::string(text), error);
  }
  if (path.empty() || error) {
    Wrong(flag, text, absl::StrCat("a path of 1 to ", kMaxPathLength, " bytes"));
    return "";
  }
  std::string normal = path.lexically_normal().string();
  if (normal.size() > 1 && normal.back() == '/') normal.pop_back();
  return normal;
}

std::string FlagReader::ModelSpec(absl::string_view flag, absl::string_view text) {
  if (absl::StartsWith(text, kMlpPrefix)) return std::string(text);
  absl::string_view folder = text;
  const bool random = absl::ConsumePrefix(&folder, kRandomPrefix);
  if (folder.empty()) {
    Wrong(flag, text, "a folder, random:FOLDER or mlp:in=..,hidden=..,layers=..,out=..");
    return "";
  }
  return absl::StrCat(random ? kRandomPrefix : "", Path(flag, folder));
}

}  // namespace regroup
