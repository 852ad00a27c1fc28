#include "client/stream.h"

#include <chrono>

namespace regroup {
namespace {

// How long a cancellation may go unnoticed.
constexpr std::chrono::milliseconds kPollInterval(50);

}  // namespace

CallPump::CallPump(grpc::ClientContext* context, ClientClock* clock,
                   const absl::Notification* cancel, absl::Duration probe_after, Probe probe,
                   AskToEnd ask_to_end)
    : context_(context),
      clock_(clock),
      cancel_(cancel),
      probe_after_(probe_after),
      probe_(std::move(probe)),
      ask_to_end_(std::move(ask_to_end)) {}

CallPump::~CallPump() {
  queue_.Shutdown();
  void* tag = nullptr;
  bool ok = false;
  while (queue_.Next(&tag, &ok)) {
  }
}

void CallPump::CheckServer() {
  // A call that ends by itself is waited for as one that nobody cancelled.
  const absl::Status answered = probe_(ending_ ? nullptr : cancel_);
  if (answered.ok() || Unwanted()) return;
  given_up_ = answered;
  cancelled_ = true;
  context_->TryCancel();
}

bool CallPump::Next() {
  absl::Time quiet_since = clock_->Now();
  while (true) {
    if (Unwanted()) {
      ending_ = true;
      if (ask_to_end_ == nullptr || !ask_to_end_()) {
        cancelled_ = true;
        context_->TryCancel();
      }
    }
    void* tag = nullptr;
    bool ok = false;
    const auto event =
        queue_.AsyncNext(&tag, &ok, std::chrono::system_clock::now() + kPollInterval);
    if (event == grpc::CompletionQueue::GOT_EVENT) return ok;
    if (!cancelled_ && clock_->Now() - quiet_since >= probe_after_) {
      CheckServer();
      quiet_since = clock_->Now();
    }
  }
}

}  // namespace regroup
