// What of client.h needs no connection.
#include <algorithm>
#include <cstdint>
#include <random>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/client.h"

namespace regroup {

std::string NewRequestId() {
  std::random_device device;
  std::string id;
  for (int i = 0; i < 4; ++i) {
    absl::StrAppendFormat(&id, "%08x", static_cast<uint32_t>(device()));
  }
  return id;
}

absl::Status CheckTarget(absl::string_view target) {
  absl::Status wrong = absl::InvalidArgumentError(
      absl::StrCat("\"", target, "\" is not a server; allowed: HOST:PORT with a port in 1..65535"));
  const size_t colon = target.rfind(':');
  if (colon == absl::string_view::npos || colon == 0) return wrong;
  absl::string_view host = target.substr(0, colon);
  const absl::string_view port = target.substr(colon + 1);
  int number = 0;
  if (port.empty() || port.size() > 5 ||
      !std::all_of(port.begin(), port.end(), [](char c) { return absl::ascii_isdigit(c); }) ||
      !absl::SimpleAtoi(port, &number) || number < 1 || number > 65535) {
    return wrong;
  }
  const bool bracketed = host.size() > 2 && host.front() == '[' && host.back() == ']';
  if (bracketed) host = host.substr(1, host.size() - 2);
  const bool plain = std::all_of(host.begin(), host.end(), [&](char c) {
    return absl::ascii_isalnum(c) || c == '.' || c == '-' || c == '_' ||
           (bracketed && (c == ':' || c == '%'));
  });
  return plain ? absl::OkStatus() : wrong;
}

absl::Status OutcomeOf(const v1::Operation& operation) {
  if (!operation.done() || (operation.error().empty() && operation.error_code() == 0)) {
    return absl::OkStatus();
  }
  const absl::StatusCode code = operation.error_code() == 0
                                    ? absl::StatusCode::kUnknown
                                    : static_cast<absl::StatusCode>(operation.error_code());
  v1::ErrorDetail detail = operation.error_detail();
  // The server did answer, so the error keeps a detail even if it says no more than this.
  if (detail.engine().empty()) detail.set_engine(operation.engine());
  if (detail.phase().empty()) detail.set_phase(operation.phase());
  return MakeError(code, operation.error(), detail);
}

}  // namespace regroup
