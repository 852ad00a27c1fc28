#include "proto/error_detail.h"

#include <string>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"

namespace regroup {

absl::Status MakeError(absl::StatusCode code, absl::string_view message,
                       const v1::ErrorDetail& detail) {
  absl::Status status(code, message);
  status.SetPayload(kErrorDetailUrl, absl::Cord(detail.SerializeAsString()));
  return status;
}

absl::Status MakeError(absl::StatusCode code, absl::string_view message, v1::ErrorReason reason) {
  v1::ErrorDetail detail;
  detail.set_reason(reason);
  return MakeError(code, message, detail);
}

absl::Status NotAvailable(absl::string_view what) {
  return MakeError(absl::StatusCode::kUnimplemented,
                   absl::StrCat("not available in this version: ", what),
                   v1::ERROR_REASON_NOT_AVAILABLE);
}

std::optional<v1::ErrorDetail> DetailOf(const absl::Status& status) {
  const absl::optional<absl::Cord> payload = status.GetPayload(kErrorDetailUrl);
  v1::ErrorDetail detail;
  if (!payload.has_value() || !detail.ParseFromString(std::string(*payload))) return std::nullopt;
  return detail;
}

}  // namespace regroup
