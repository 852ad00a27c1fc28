// The one form of errors about what a user gave: flag, value, what is wrong, what is allowed.
#ifndef DAEMON_CONTROL_FIELD_ERROR_H_
#define DAEMON_CONTROL_FIELD_ERROR_H_

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "engine/layout/human_text.h"
#include "proto/rpc_status.h"

namespace regroup {

// "--lr=nan is not a number; allowed: a finite number above 0". INVALID_ARGUMENT. Long values are
// cut and unprintable bytes escaped.
inline absl::Status FieldError(absl::string_view flag, absl::string_view value,
                               absl::string_view problem, absl::string_view allowed) {
  return MakeError(absl::StatusCode::kInvalidArgument,
                   absl::StrCat(flag, "=", Printable(value), " ", problem, "; allowed: ", allowed),
                   v1::ERROR_REASON_INVALID_FIELD);
}

}  // namespace regroup

#endif  // DAEMON_CONTROL_FIELD_ERROR_H_
