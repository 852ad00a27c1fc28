#include "client/errors.h"

#include <algorithm>
#include <optional>
#include <vector>

#include "absl/strings/cord.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/layout/rank_list.h"
#include "proto/error_detail.h"

namespace regroup {
namespace {

constexpr char kUsageUrl[] = "regroupctl/usage";
constexpr size_t kMaxValueLength = 80;

bool IsUsage(const absl::Status& status) { return status.GetPayload(kUsageUrl).has_value(); }

std::string WhereToLook(const absl::Status& status, const v1::ErrorDetail& detail) {
  if (detail.reason() == v1::ERROR_REASON_RANK_LOST) return "regroupctl rank list";
  if (detail.engine().empty()) return "";
  if (absl::IsNotFound(status)) return "regroupctl engine list";
  // One that never had a layout is gone again.
  if (detail.generation() == 0) return "regroupctl status";
  const char* verb = detail.reason() == v1::ERROR_REASON_RANKS_DISAGREE ? "trace" : "describe";
  return absl::StrCat("regroupctl engine ", verb, " ", detail.engine());
}

// Those at fault, as far as `what` does not name them.
std::string Who(const v1::ErrorDetail& detail, absl::string_view what) {
  std::vector<std::string> parts;
  const auto add = [&](absl::string_view kind, absl::string_view name) {
    const std::string part = OneLine(absl::StrCat(kind, " ", name));
    if (!name.empty() && !absl::StrContains(what, part)) parts.push_back(part);
  };
  add("engine", detail.engine());
  add("group", detail.group());
  add(detail.ranks_size() == 1 ? "rank" : "ranks",
      FormatRankList(std::vector<int>(detail.ranks().begin(), detail.ranks().end())));
  // The phase of what the ranks agree on is the one to know.
  if (!absl::StrContains(what, "phase ")) add("phase", detail.phase());
  return absl::StrJoin(parts, ", ");
}

// A field or a feature is named by the message: who and where would add nothing.
bool SaysItAll(const v1::ErrorDetail& detail) {
  return detail.reason() == v1::ERROR_REASON_INVALID_FIELD ||
         detail.reason() == v1::ERROR_REASON_NOT_AVAILABLE ||
         detail.reason() == v1::ERROR_REASON_DATA;
}

}  // namespace

absl::Status UsageError(absl::string_view flag, absl::string_view value,
                        absl::string_view allowed) {
  std::string shown(value.substr(0, kMaxValueLength));
  if (value.size() > kMaxValueLength) shown += "...";
  return UsageError(absl::StrCat(flag, "=", shown, ": must be ", allowed));
}

absl::Status UsageError(absl::string_view message) {
  absl::Status status = absl::InvalidArgumentError(message);
  status.SetPayload(kUsageUrl, absl::Cord());
  return status;
}

ExitCode ExitCodeOf(const absl::Status& status) {
  if (status.ok()) return kExitOk;
  if (IsUsage(status)) return kExitUsage;
  if (const std::optional<v1::ErrorDetail> detail = DetailOf(status)) {
    return detail->reason() == v1::ERROR_REASON_RANKS_DISAGREE ? kExitRanksDisagree : kExitRefused;
  }
  return absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status) ? kExitNoAnswer
                                                                         : kExitRefused;
}

std::string OneLine(absl::string_view text) {
  std::string line;
  bool space = false;
  for (const char c : text) {
    if (c == '\n' || c == '\r' || c == '\t' || c == ' ') {
      space = !line.empty();
      continue;
    }
    if (space) line += ' ';
    space = false;
    line += static_cast<unsigned char>(c) < 0x20 || c == 0x7f ? '?' : c;
  }
  return line;
}

std::string ErrorLine(const absl::Status& status, absl::string_view server) {
  std::string what = OneLine(status.message());
  if (what.empty()) what = absl::StatusCodeToString(status.code());
  if (ExitCodeOf(status) == kExitNoAnswer) {
    return absl::StrCat(
        "regroupctl: no answer from ", server, ": ", what,
        " (server; is a regroupd listening there? see --server and REGROUP_SERVER)");
  }
  const std::optional<v1::ErrorDetail> detail = DetailOf(status);
  if (!detail.has_value() || SaysItAll(*detail)) return absl::StrCat("regroupctl: ", what);
  std::vector<std::string> notes;
  for (const std::string& note : {Who(*detail, what), OneLine(WhereToLook(status, *detail))}) {
    if (!note.empty()) notes.push_back(note);
  }
  if (notes.empty()) return absl::StrCat("regroupctl: ", what);
  return absl::StrCat("regroupctl: ", what, " (", absl::StrJoin(notes, "; "), ")");
}

}  // namespace regroup
