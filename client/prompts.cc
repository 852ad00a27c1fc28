#include "client/prompts.h"

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"

namespace regroup {
namespace {

absl::Status LineError(int64_t line, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("line ", line, " ", what));
}

absl::StatusOr<std::vector<int32_t>> ParsePrompt(const std::string& text, int64_t line) {
  constexpr char kAllowed[] = "must be a JSON array of token ids like [1, 2, 3]";
  const nlohmann::json array = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!array.is_array() || array.empty()) return LineError(line, kAllowed);
  std::vector<int32_t> tokens;
  tokens.reserve(array.size());
  for (const nlohmann::json& item : array) {
    if (!item.is_number_unsigned() || item.get<uint64_t>() > uint64_t{kMaxToken}) {
      return LineError(line, absl::StrCat("item ", tokens.size(),
                                          ": a token id must be an integer in 0..", kMaxToken));
    }
    tokens.push_back(item.get<int32_t>());
  }
  return tokens;
}

}  // namespace

absl::StatusOr<std::vector<std::vector<int32_t>>> ReadPrompts(const std::string& path) {
  std::error_code error;
  const std::filesystem::file_status kind = std::filesystem::status(path, error);
  if (std::filesystem::is_directory(kind)) {
    return absl::InvalidArgumentError("is a folder; must be a file");
  }
  // A pipe that nobody writes to would be waited for, for ever.
  if (std::filesystem::exists(kind) && !std::filesystem::is_regular_file(kind)) {
    return absl::InvalidArgumentError("is a pipe or a device; must be a file");
  }
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  if (!file)
    return absl::InvalidArgumentError(absl::StrCat("cannot be read: ", std::strerror(errno)));
  std::vector<std::vector<int32_t>> prompts;
  std::string text;
  int64_t bytes = 0;
  const absl::Status too_large = absl::InvalidArgumentError(absl::StrCat(
      "is larger than ", kMaxPromptFileBytes, " bytes, which is what one request takes"));
  for (int64_t line = 1;; ++line) {
    text.clear();
    char c = 0;
    while (file.get(c) && c != '\n') {
      if (++bytes > kMaxPromptFileBytes) return too_large;
      text += c;
    }
    if (file.eof() && text.empty()) break;
    if (file.bad()) return LineError(line, "cannot be read");
    if (line > kMaxPrompts) {
      return LineError(line, absl::StrCat("is one too many; allowed are ", kMaxPrompts));
    }
    absl::StatusOr<std::vector<int32_t>> prompt = ParsePrompt(text, line);
    if (!prompt.ok()) return prompt.status();
    prompts.push_back(*std::move(prompt));
  }
  if (prompts.empty())
    return absl::InvalidArgumentError("has no line; must have a JSON array a line");
  return prompts;
}

}  // namespace regroup
