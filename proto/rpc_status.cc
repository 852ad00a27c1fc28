#include "proto/rpc_status.h"

#include <optional>
#include <string>

#include "absl/strings/cord.h"

namespace regroup {

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
    result.SetPayload(kErrorDetailUrl, absl::Cord(status.error_details()));
  }
  return result;
}

}  // namespace regroup
