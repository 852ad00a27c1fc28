// The one place where exceptions of torch and c10d become absl::Status, and where a Status has to
// travel through torch code (autograd hooks) as an exception.
#ifndef ENGINE_GROUP_COMM_STATUS_H_
#define ENGINE_GROUP_COMM_STATUS_H_

#include <exception>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace regroup {

// Payload of statuses of the engine layer whose value names the kind of failure beyond the code;
// the worker turns it into regroup.v1.ErrorDetail.reason. Values: "RANKS_DISAGREE", "RANK_LOST",
// "TIMEOUT", "CANCELLED", "MEMORY", "DATA".
inline constexpr char kReasonPayload[] = "regroup/reason";

absl::Status WithReason(absl::Status status, absl::string_view reason);
std::string ReasonOf(const absl::Status& status);  // "" if none

// Carries a Status through code that only knows exceptions.
class StatusException : public std::exception {
 public:
  explicit StatusException(absl::Status status)
      : status_(std::move(status)), what_(status_.ToString()) {}
  const absl::Status& status() const { return status_; }
  const char* what() const noexcept override { return what_.c_str(); }

 private:
  absl::Status status_;
  std::string what_;
};

// Throws StatusException unless `status` is OK. For use inside autograd hooks and UnitRunner::Run
// only.
void ThrowIfError(const absl::Status& status);

// Runs `body`; what it throws becomes a Status: StatusException its own; out of memory
// RESOURCE_EXHAUSTED; a c10d timeout DEADLINE_EXCEEDED; a closed or reset connection UNAVAILABLE;
// anything else INTERNAL. `what` starts the message: who did what.
absl::Status CatchStatus(absl::string_view what, absl::FunctionRef<absl::Status()> body);

}  // namespace regroup

#endif  // ENGINE_GROUP_COMM_STATUS_H_
