// Threads of operations: started freely, waited for together.
#ifndef DAEMON_CONTROL_TASK_GROUP_H_
#define DAEMON_CONTROL_TASK_GROUP_H_

#include <functional>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace regroup {

// Thread safe.
class TaskGroup {
 public:
  static constexpr int kMost = 512;  // that run at a time

  TaskGroup() : state_(std::make_shared<State>()) {}
  ~TaskGroup();  // closes, and waits for all tasks

  // Runs `task` on a thread of its own. Errors: StoppingError if the group is closed;
  // RESOURCE_EXHAUSTED if kMost run, or the system has no thread left.
  absl::Status Start(std::function<void()> task);

  void Close();                    // nothing more starts
  bool Wait(absl::Time deadline);  // true once no task runs, false at the deadline

 private:
  struct State {
    absl::Mutex mutex;
    bool closed ABSL_GUARDED_BY(mutex) = false;
    int running ABSL_GUARDED_BY(mutex) = 0;
  };
  const std::shared_ptr<State> state_;  // shared with threads that are about to end
};

}  // namespace regroup

#endif  // DAEMON_CONTROL_TASK_GROUP_H_
