#include "daemon/worker/executor.h"

#include <utility>

namespace regroup {

Executor::Executor(std::function<void()> prepare_thread)
    : thread_([this, prepare_thread = std::move(prepare_thread)] {
        if (prepare_thread) prepare_thread();
        Loop();
      }) {}

Executor::~Executor() {
  {
    absl::MutexLock lock(&mutex_);
    closing_ = true;
  }
  thread_.join();
}

void Executor::Post(std::function<void()> task) {
  absl::MutexLock lock(&mutex_);
  tasks_.push_back(std::move(task));
}

void Executor::Loop() {
  while (true) {
    std::function<void()> task;
    {
      absl::MutexLock lock(&mutex_);
      const auto has_work = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
        return closing_ || !tasks_.empty();
      };
      mutex_.Await(absl::Condition(&has_work));
      if (tasks_.empty()) return;
      task = std::move(tasks_.front());
      tasks_.pop_front();
    }
    task();
  }
}

}  // namespace regroup
