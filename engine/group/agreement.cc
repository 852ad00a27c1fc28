#include "engine/group/agreement.h"

#include <xxhash.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <map>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "engine/group/comm_status.h"
#include "engine/layout/rank_list.h"

namespace regroup {
namespace {

// What a member says in the first round: a digest, or why it failed (code, then message).
constexpr char kHasDigest = 'd';
constexpr char kHasFailed = 'f';

// Messages travel as gRPC status messages, which have to fit into a header.
constexpr size_t kMaxShownValue = 200;
constexpr size_t kMaxShownFailure = 2000;
constexpr size_t kMaxMessage = 3500;

std::string Shorten(absl::string_view text, size_t most) {
  if (text.size() <= most) return std::string(text);
  return absl::StrCat(text.substr(0, most), "... (", text.size(), " bytes)");
}

// Fields are framed by their lengths, so that {"ab", ""} and {"a", "b"} differ.
std::string Frame(const std::vector<std::string>& values) {
  std::string framed;
  for (const std::string& value : values) {
    const uint64_t length = value.size();
    framed.append(reinterpret_cast<const char*>(&length), sizeof(length));
    framed.append(value);
  }
  return framed;
}

std::vector<std::string> Unframe(absl::string_view framed) {
  std::vector<std::string> values;
  while (framed.size() >= sizeof(uint64_t)) {
    uint64_t length = 0;
    std::memcpy(&length, framed.data(), sizeof(length));
    framed.remove_prefix(sizeof(length));
    length = std::min<uint64_t>(length, framed.size());
    values.emplace_back(framed.substr(0, length));
    framed.remove_prefix(length);
  }
  return values;
}

std::string FirstMessage(const std::string& framed, const absl::Status& failure) {
  std::string message;
  if (!failure.ok()) {
    message.push_back(kHasFailed);
    message.push_back(static_cast<char>(failure.code()));
    absl::StrAppend(&message, ReasonOf(failure), "\n",
                    Shorten(failure.message(), kMaxShownFailure));
    return message;
  }
  const XXH128_hash_t digest = XXH3_128bits(framed.data(), framed.size());
  message.push_back(kHasDigest);
  message.append(reinterpret_cast<const char*>(&digest), sizeof(digest));
  return message;
}

// The error of the first member that failed; OK if none did.
absl::Status FirstFailure(const Group& group, absl::string_view where,
                          const std::vector<std::string>& messages) {
  for (size_t i = 0; i < messages.size(); ++i) {
    const absl::string_view message = messages[i];
    if (message.size() < 2 || message[0] != kHasFailed) continue;
    const absl::string_view text = message.substr(2);
    const size_t end_of_reason = text.find('\n');
    return WithReason(
        absl::Status(static_cast<absl::StatusCode>(message[1]),
                     Shorten(absl::StrCat(where, ": rank ", group.options().ranks[i],
                                          " failed: ", text.substr(end_of_reason + 1)),
                             kMaxMessage)),
        text.substr(0, end_of_reason));
  }
  return absl::OkStatus();
}

std::string ValueAt(const std::vector<std::string>& values, size_t position) {
  return position < values.size()
             ? absl::StrCat("'", Shorten(values[position], kMaxShownValue), "'")
             : "nothing";
}

// Compares the lead's list with the first that differs, and says which ranks hold which.
absl::Status Disagreement(const Group& group, absl::string_view where,
                          const std::vector<std::string>& lists) {
  std::map<std::string, std::vector<int>> sides;
  size_t other = 0;
  for (size_t i = 0; i < lists.size(); ++i) {
    sides[lists[i]].push_back(group.options().ranks[i]);
    if (other == 0 && lists[i] != lists[0]) other = i;
  }
  const std::vector<std::string> a = Unframe(lists[0]);
  const std::vector<std::string> b = Unframe(lists[other]);
  size_t position = 0;
  while (position < a.size() && position < b.size() && a[position] == b[position]) ++position;
  const auto ranks_of = [&sides](const std::string& list) {
    return Shorten(FormatRankList(sides[list]), kMaxShownValue);
  };
  std::string message = absl::StrCat(where, ": ranks disagree at position ", position, ": ranks ",
                                     ranks_of(lists[0]), " have ", ValueAt(a, position), " (of ",
                                     a.size(), " values), ranks ", ranks_of(lists[other]), " have ",
                                     ValueAt(b, position), " (of ", b.size(), " values)");
  if (sides.size() > 2) absl::StrAppend(&message, "; ", sides.size(), " different lists in all");
  return WithReason(absl::AbortedError(Shorten(message, kMaxMessage)), "RANKS_DISAGREE");
}

using Clock = std::chrono::steady_clock;

thread_local absl::Duration time_in_agreements;

}  // namespace

absl::Duration TimeInAgreements() { return time_in_agreements; }

absl::Status Agree(Group& group, absl::string_view phase, const std::vector<std::string>& values,
                   const absl::Status& failure) {
  const absl::Cleanup count = [start = Clock::now()] {
    time_in_agreements += absl::FromChrono(Clock::now() - start);
  };
  const std::string where = absl::StrCat(
      "engine ", group.options().engine, ", phase ", phase, ", group ", group.options().name,
      " of ranks ", Shorten(FormatRankList(group.options().ranks), kMaxShownValue));
  const std::string framed = Frame(values);
  const absl::StatusOr<std::vector<std::string>> messages =
      group.Exchange(FirstMessage(framed, failure), phase);
  if (!messages.ok()) return failure.ok() ? messages.status() : failure;
  if (absl::Status failed = FirstFailure(group, where, *messages); !failed.ok()) return failed;
  if (std::all_of(messages->begin(), messages->end(),
                  [&](const std::string& message) { return message == messages->front(); })) {
    return absl::OkStatus();
  }
  const absl::StatusOr<std::vector<std::string>> lists = group.Exchange(framed, phase);
  if (!lists.ok()) return lists.status();
  return Disagreement(group, where, *lists);
}

}  // namespace regroup
