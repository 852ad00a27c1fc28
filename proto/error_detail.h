// The typed detail (regroup.v1.ErrorDetail) that the absl::Status of an error carries as a payload.
#ifndef PROTO_ERROR_DETAIL_H_
#define PROTO_ERROR_DETAIL_H_

#include <optional>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "regroup/v1/status.pb.h"

namespace regroup {

// The type URL of the payload.
inline constexpr char kErrorDetailUrl[] = "type.googleapis.com/regroup.v1.ErrorDetail";

// Makes the status of one error. `code` must not be OK.
absl::Status MakeError(absl::StatusCode code, absl::string_view message,
                       const v1::ErrorDetail& detail);

// As above, with only a reason.
absl::Status MakeError(absl::StatusCode code, absl::string_view message, v1::ErrorReason reason);

// "not available in this version: WHAT", UNIMPLEMENTED.
absl::Status NotAvailable(absl::string_view what);

// The detail of a status, if it carries one that parses.
std::optional<v1::ErrorDetail> DetailOf(const absl::Status& status);

}  // namespace regroup

#endif  // PROTO_ERROR_DETAIL_H_
