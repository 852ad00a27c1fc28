#include "client/stream.h"

#include <chrono>

#include "absl/time/clock.h"

namespace regroup {
namespace {

// How long a cancellation may go unnoticed.
constexpr std::chrono::milliseconds kPollInterval(50);

}  // namespace

StreamPump::StreamPump(grpc::ClientContext* context, const absl::Notification* cancel,
                       absl::Duration probe_after, std::function<absl::Status()> probe)
    : context_(context), cancel_(cancel), probe_after_(probe_after), probe_(std::move(probe)) {}

StreamPump::~StreamPump() {
  queue_.Shutdown();
  void* tag = nullptr;
  bool ok = false;
  while (queue_.Next(&tag, &ok)) {
  }
}

void StreamPump::CancelCall() {
  cancelled_ = true;
  context_->TryCancel();
}

bool StreamPump::Next() {
  absl::Time quiet_since = absl::Now();
  while (true) {
    if (!cancelled_ && cancel_ != nullptr && cancel_->HasBeenNotified()) CancelCall();
    void* tag = nullptr;
    bool ok = false;
    const auto event =
        queue_.AsyncNext(&tag, &ok, std::chrono::system_clock::now() + kPollInterval);
    if (event == grpc::CompletionQueue::GOT_EVENT) return ok;
    if (!cancelled_ && absl::Now() - quiet_since >= probe_after_) {
      given_up_ = probe_();
      if (!given_up_.ok()) CancelCall();
      quiet_since = absl::Now();
    }
  }
}

}  // namespace regroup
