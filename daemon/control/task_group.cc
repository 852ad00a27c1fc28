#include "daemon/control/task_group.h"

#include <system_error>
#include <thread>
#include <utility>

namespace regroup {

TaskGroup::~TaskGroup() {
  Close();
  Wait(absl::InfiniteFuture());
}

bool TaskGroup::Start(std::function<void()> task) {
  {
    absl::MutexLock lock(&state_->mutex);
    if (state_->closed) return false;
    ++state_->running;
  }
  try {
    std::thread([state = state_, task = std::move(task)]() mutable {
      task();
      task = nullptr;  // what it holds goes before it counts as ended
      absl::MutexLock lock(&state->mutex);
      --state->running;
    }).detach();
  } catch (const std::system_error&) {  // the system has no thread left
    absl::MutexLock lock(&state_->mutex);
    --state_->running;
    return false;
  }
  return true;
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
