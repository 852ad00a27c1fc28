// The one thread of a worker on which commands run, in the order in which they came.
#ifndef DAEMON_WORKER_EXECUTOR_H_
#define DAEMON_WORKER_EXECUTOR_H_

#include <deque>
#include <functional>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace regroup {

// Thread safe.
class Executor {
 public:
  // `prepare_thread` runs first on the new thread (nullptr: nothing).
  explicit Executor(std::function<void()> prepare_thread);

  // Runs everything that was posted, then ends.
  ~Executor();

  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  void Post(std::function<void()> task) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  void Loop() ABSL_LOCKS_EXCLUDED(mutex_);

  absl::Mutex mutex_;
  std::deque<std::function<void()>> tasks_ ABSL_GUARDED_BY(mutex_);
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;  // last: it uses the rest
};

}  // namespace regroup

#endif  // DAEMON_WORKER_EXECUTOR_H_
