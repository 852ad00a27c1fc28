#include "proto/rpc_status.h"

#include <optional>
#include <string>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace regroup {
namespace {

// gRPC refuses trailing metadata above 8 KiB: the caller would see another error than this one. As
// it travels, an unprintable byte takes three; the detail needs room too.
constexpr size_t kMostBytes = 6000;

std::string Bounded(absl::string_view message) {
  size_t bytes = 0;
  for (size_t i = 0; i < message.size(); ++i) {
    const char c = message[i];
    bytes += c >= ' ' && c < 0x7f && c != '%' ? 1 : 3;
    if (bytes <= kMostBytes) continue;
    while (i > 0 && (message[i] & 0xc0) == 0x80) --i;  // not within a character
    return absl::StrCat(message.substr(0, i), "...");
  }
  return std::string(message);
}

}  // namespace

grpc::Status ToGrpc(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  const std::optional<v1::ErrorDetail> detail = DetailOf(status);
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), Bounded(status.message()),
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
