#include "proto/rpc_status.h"

#include <string>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"

namespace regroup {
namespace {

constexpr char kDetailUrl[] = "type.googleapis.com/regroup.v1.ErrorDetail";

}  // namespace

absl::Status MakeError(absl::StatusCode code, absl::string_view message,
                       const v1::ErrorDetail& detail) {
  absl::Status status(code, message);
  status.SetPayload(kDetailUrl, absl::Cord(detail.SerializeAsString()));
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
  const absl::optional<absl::Cord> payload = status.GetPayload(kDetailUrl);
  v1::ErrorDetail detail;
  if (!payload.has_value() || !detail.ParseFromString(std::string(*payload))) return std::nullopt;
  return detail;
}

grpc::Status ToGrpc(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  const std::optional<v1::ErrorDetail> detail = DetailOf(status);
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), std::string(status.message()),
                      detail.has_value() ? detail->SerializeAsString() : "");
}

absl::Status FromGrpc(const grpc::Status& status) {
  if (status.ok()) return absl::OkStatus();
  absl::Status result(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
  v1::ErrorDetail detail;
  if (!status.error_details().empty() && detail.ParseFromString(status.error_details())) {
    result.SetPayload(kDetailUrl, absl::Cord(status.error_details()));
  }
  return result;
}

}  // namespace regroup
