#include "client/stream.h"

#include <chrono>

#include "absl/time/clock.h"

namespace regroup {
namespace {

// How long a cancellation may go unnoticed.
constexpr std::chrono::milliseconds kPollInterval(50);

}  // namespace

CallPump::CallPump(grpc::ClientContext* context, const absl::Notification* cancel,
                   absl::Duration probe_after, Probe probe)
    : context_(context), cancel_(cancel), probe_after_(probe_after), probe_(std::move(probe)) {}

CallPump::~CallPump() {
  queue_.Shutdown();
  void* tag = nullptr;
  bool ok = false;
  while (queue_.Next(&tag, &ok)) {
  }
}

void CallPump::CancelCall() {
  cancelled_ = true;
  context_->TryCancel();
}

bool CallPump::Next() {
  absl::Time quiet_since = absl::Now();
  while (true) {
    if (!cancelled_ && Unwanted()) CancelCall();
    void* tag = nullptr;
    bool ok = false;
    const auto event =
        queue_.AsyncNext(&tag, &ok, std::chrono::system_clock::now() + kPollInterval);
    if (event == grpc::CompletionQueue::GOT_EVENT) return ok;
    if (!cancelled_ && absl::Now() - quiet_since >= probe_after_) {
      const absl::Status answered = probe_(cancel_);
      if (!answered.ok() && !Unwanted()) {
        given_up_ = answered;
        CancelCall();
      }
      quiet_since = absl::Now();
    }
  }
}

}  // namespace regroup
