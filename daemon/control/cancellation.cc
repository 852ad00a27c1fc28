#include "daemon/control/cancellation.h"

#include <utility>

#include "proto/rpc_status.h"

namespace regroup {

absl::Status CancelledError(const std::string& why) {
  return MakeError(absl::StatusCode::kCancelled, why, v1::ERROR_REASON_CANCELLED);
}

absl::Status StoppingError() {
  return MakeError(absl::StatusCode::kUnavailable, "the daemon is stopping",
                   v1::ERROR_REASON_CANCELLED);
}

void Cancellation::Cancel(absl::Status why, CancelledBy by) {
  absl::MutexLock lock(&mutex_);
  if (!why_.ok()) return;
  why_ = std::move(why);
  by_ = by;
  for (const auto& entry : callbacks_) entry.second();
  callbacks_.clear();
}

absl::Status Cancellation::status() const {
  absl::MutexLock lock(&mutex_);
  return why_;
}

bool Cancellation::cancelled_by(CancelledBy by) const {
  absl::MutexLock lock(&mutex_);
  return !why_.ok() && by_ == by;
}

Cancellation::Hook::Hook(Cancellation& cancellation, std::function<void()> callback)
    : cancellation_(cancellation) {
  absl::MutexLock lock(&cancellation_.mutex_);
  if (!cancellation_.why_.ok()) {
    callback();
    return;
  }
  id_ = ++cancellation_.last_id_;
  cancellation_.callbacks_.emplace(id_, std::move(callback));
}

Cancellation::Hook::~Hook() {
  absl::MutexLock lock(&cancellation_.mutex_);
  cancellation_.callbacks_.erase(id_);
}

}  // namespace regroup
