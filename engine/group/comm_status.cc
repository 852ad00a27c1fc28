#include "engine/group/comm_status.h"

#include <c10/util/Exception.h>
#include <torch/csrc/distributed/c10d/exception.h>

#include <new>

#include "absl/strings/ascii.h"
#include "absl/strings/cord.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace regroup {
namespace {

// The first line of what a library says, without its C++ stack.
std::string FirstLine(absl::string_view text) {
  return std::string(text.substr(0, text.find('\n')));
}

// gloo's exceptions reach us as std::runtime_error; only their words tell a timeout from a lost
// peer.
absl::Status FromWords(absl::string_view what, absl::string_view words) {
  const std::string message = absl::StrCat(what, ": ", FirstLine(words));
  const std::string lower = absl::AsciiStrToLower(words);
  if (absl::StrContains(lower, "timed out") || absl::StrContains(lower, "timeout")) {
    return WithReason(absl::DeadlineExceededError(message), "TIMEOUT");
  }
  for (const char* lost : {"connection closed", "connection reset", "broken pipe", "connect",
                           "socket closed", "end of file"}) {
    if (absl::StrContains(lower, lost)) {
      return WithReason(absl::UnavailableError(message), "RANK_LOST");
    }
  }
  return absl::InternalError(message);
}

}  // namespace

absl::Status WithReason(absl::Status status, absl::string_view reason) {
  if (!status.ok()) status.SetPayload(kReasonPayload, absl::Cord(reason));
  return status;
}

std::string ReasonOf(const absl::Status& status) {
  const absl::optional<absl::Cord> payload = status.GetPayload(kReasonPayload);
  return payload.has_value() ? std::string(*payload) : "";
}

void ThrowIfError(const absl::Status& status) {
  if (!status.ok()) throw StatusException(status);
}

absl::Status CatchStatus(absl::string_view what, absl::FunctionRef<absl::Status()> body) {
  try {
    return body();
  } catch (const StatusException& e) {
    return e.status();
  } catch (const std::bad_alloc&) {
    return WithReason(absl::ResourceExhaustedError(absl::StrCat(what, ": out of memory")),
                      "MEMORY");
  } catch (const c10::OutOfMemoryError& e) {
    return WithReason(absl::ResourceExhaustedError(
                          absl::StrCat(what, ": ", FirstLine(e.what_without_backtrace()))),
                      "MEMORY");
  } catch (const c10d::TimeoutError& e) {
    return WithReason(absl::DeadlineExceededError(
                          absl::StrCat(what, ": ", FirstLine(e.what_without_backtrace()))),
                      "TIMEOUT");
  } catch (const c10::Error& e) {
    if (absl::StrContains(e.what_without_backtrace(), "DefaultCPUAllocator")) {
      return WithReason(absl::ResourceExhaustedError(absl::StrCat(what, ": out of memory")),
                        "MEMORY");
    }
    return FromWords(what, e.what_without_backtrace());
  } catch (const std::exception& e) {
    return FromWords(what, e.what());
  }
}

}  // namespace regroup
