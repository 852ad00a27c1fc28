// Values of regroupctl's flags, parsed strictly: the whole text must be what the flag allows.
#ifndef CLIENT_FLAGS_H_
#define CLIENT_FLAGS_H_

#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace regroup {

struct NumberRange {
  double min = 0;
  bool above_min = false;  // min itself is not allowed
  double max = std::numeric_limits<double>::infinity();
  bool below_max = false;  // max itself is not allowed
};

inline constexpr NumberRange kNotNegative = {};
inline constexpr NumberRange kPositive = {0, /*above_min=*/true};
inline constexpr NumberRange kUpToOne = {0, false, 1};
inline constexpr NumberRange kBelowOne = {0, false, 1, /*below_max=*/true};

// Reads one value after another and remembers the first that is wrong, as a usage error that names
// the flag, the value and what is allowed. A wrong value reads as 0, "" or {}.
class FlagReader {
 public:
  const absl::Status& status() const { return status_; }

  // Remembers `error` unless there is one already.
  void Fail(const absl::Status& error);

  // Decimal digits, with a minus sign if `min` is negative.
  int64_t Int(absl::string_view flag, absl::string_view text, int64_t min, int64_t max);
  uint64_t Seed(absl::string_view flag, absl::string_view text);

  // A finite decimal number in `range`.
  double Number(absl::string_view flag, absl::string_view text, const NumberRange& range);

  // A number with a unit, 1s to 1h.
  absl::Duration Timeout(absl::string_view flag, absl::string_view text);

  // The name of an engine, the id of an operation.
  std::string Name(absl::string_view flag, absl::string_view text);
  std::string OperationId(absl::string_view flag, absl::string_view text);

  std::vector<int> Ranks(absl::string_view flag, absl::string_view text);

  // Token ids, separated by commas.
  std::vector<int32_t> Tokens(absl::string_view flag, absl::string_view text);

  // Token ids of a file of this machine, one JSON array a line.
  std::vector<std::vector<int32_t>> TokensFile(absl::string_view flag, const std::string& path);

  // A path, absolute and without "." and "..". Nothing is looked up: it is a path of the daemons'
  // machines.
  std::string Path(absl::string_view flag, absl::string_view text);

  // A model SPEC: a folder, random:FOLDER (made absolute) or mlp:... (as it is).
  std::string ModelSpec(absl::string_view flag, absl::string_view text);

  // One of the names.
  template <class T>
  T Choice(absl::string_view flag, absl::string_view text,
           const std::vector<std::pair<absl::string_view, T>>& choices) {
    std::string allowed;
    for (const auto& [name, value] : choices) {
      if (name == text) return value;
      allowed += allowed.empty() ? "one of " : ", ";
      allowed += std::string(name);
    }
    Wrong(flag, text, allowed);
    return T();
  }

  void Wrong(absl::string_view flag, absl::string_view text, absl::string_view allowed);

 private:
  absl::Status status_;
};

}  // namespace regroup

#endif  // CLIENT_FLAGS_H_
