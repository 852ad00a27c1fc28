// How regroupctl ends: its exit codes, and the one line on stderr.
#ifndef CLIENT_ERRORS_H_
#define CLIENT_ERRORS_H_

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace regroup {

enum ExitCode {
  kExitOk = 0,
  kExitRefused = 1,        // the server refused or failed
  kExitUsage = 2,          // it does not parse, nothing was sent
  kExitNoAnswer = 3,       // no answer from the server
  kExitRanksDisagree = 4,  // the ranks of an engine disagree
};

// The command line is wrong: "FLAG=VALUE: must be ALLOWED".
absl::Status UsageError(absl::string_view flag, absl::string_view value, absl::string_view allowed);

// As above, in words of its own.
absl::Status UsageError(absl::string_view message);

ExitCode ExitCodeOf(const absl::Status& status);

// "regroupctl: WHAT (WHO; where to look)" for a status that is not OK, without the line's end.
std::string ErrorLine(const absl::Status& status, absl::string_view server);

// `text` on one line, without control characters, so that what others wrote can't act on a
// terminal.
std::string OneLine(absl::string_view text);

}  // namespace regroup

#endif  // CLIENT_ERRORS_H_
