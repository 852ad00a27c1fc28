// Between absl::Status, which every layer returns, and grpc::Status, which travels. The typed
// detail (regroup.v1.ErrorDetail) is a payload of the one and the binary details of the other.
#ifndef PROTO_RPC_STATUS_H_
#define PROTO_RPC_STATUS_H_

#include <optional>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "grpcpp/support/status.h"
#include "regroup/v1/status.pb.h"

namespace regroup {

// Makes the status of one error. `code` must not be OK.
absl::Status MakeError(absl::StatusCode code, absl::string_view message,
                       const v1::ErrorDetail& detail);

// As above, with only a reason.
absl::Status MakeError(absl::StatusCode code, absl::string_view message, v1::ErrorReason reason);

// "not available in this version: WHAT", UNIMPLEMENTED.
absl::Status NotAvailable(absl::string_view what);

// The detail of a status, if it carries one that parses.
std::optional<v1::ErrorDetail> DetailOf(const absl::Status& status);

// Thread safe; neither loses code, message or detail.
grpc::Status ToGrpc(const absl::Status& status);
absl::Status FromGrpc(const grpc::Status& status);

}  // namespace regroup

#endif  // PROTO_RPC_STATUS_H_
