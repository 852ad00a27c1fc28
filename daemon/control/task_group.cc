#include "daemon/control/task_group.h"

#include <system_error>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/control/cancellation.h"
#include "proto/rpc_status.h"

namespace regroup {

TaskGroup::~TaskGroup() {
  Close();
  Wait(absl::InfiniteFuture());
}

absl::Status TaskGroup::Start(std::function<void()> task) {
  {
    absl::MutexLock lock(&state_->mutex);
    if (state_->closed) return StoppingError();
    if (state_->running >= kMost) {
      return MakeError(absl::StatusCode::kResourceExhausted,
                       absl::StrCat("too many calls and operations run; allowed: ", kMost,
                                    " at a time; try again later"),
                       v1::ERROR_REASON_UNSPECIFIED);
    }
    ++state_->running;
  }
  try {
    std::thread([state = state_, task = std::move(task)]() mutable {
      task();
      task = nullptr;  // what it holds goes before it counts as ended
      absl::MutexLock lock(&state->mutex);
      --state->running;
    }).detach();
  } catch (const std::system_error& error) {
    absl::MutexLock lock(&state_->mutex);
    --state_->running;
    return MakeError(absl::StatusCode::kResourceExhausted,
                     absl::StrCat("the daemon's machine has no thread left: ", error.what()),
                     v1::ERROR_REASON_UNSPECIFIED);
  }
  return absl::OkStatus();
}

void TaskGroup::Close() {
  absl::MutexLock lock(&state_->mutex);
  state_->closed = true;
}

bool TaskGroup::Wait(absl::Time deadline) {
  absl::MutexLock lock(&state_->mutex);
  const auto idle = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_->mutex) {
    return state_->running == 0;
  };
  return state_->mutex.AwaitWithDeadline(absl::Condition(&idle), deadline);
}

}  // namespace regroup
