// Between absl::Status, which every layer returns, and grpc::Status, which travels. The typed
// detail (regroup.v1.ErrorDetail) is a payload of the one and the binary details of the other.
#ifndef PROTO_RPC_STATUS_H_
#define PROTO_RPC_STATUS_H_

#include "absl/status/status.h"
#include "grpcpp/support/status.h"
#include "proto/error_detail.h"

namespace regroup {

// Thread safe; neither loses code or detail, nor the message up to some thousand bytes: what is
// longer would not arrive at all, and is cut.
grpc::Status ToGrpc(const absl::Status& status);
absl::Status FromGrpc(const grpc::Status& status);

}  // namespace regroup

#endif  // PROTO_RPC_STATUS_H_
