// Ctrl-C, turned into something that a call can be cancelled with.
#ifndef CLIENT_INTERRUPT_H_
#define CLIENT_INTERRUPT_H_

#include <atomic>

#include "absl/synchronization/notification.h"

namespace regroup {

// Takes over SIGINT for the whole process: make one, before any other thread starts. It is never
// destroyed.
class Interrupt {
 public:
  static Interrupt* Install();

  // From now on the first Ctrl-C only notifies; the second ends the process with exit code 130, as
  // any does before this call.
  const absl::Notification* Arm();

  // Does what the first Ctrl-C does.
  void Stop();

  bool happened() const { return interrupted_.HasBeenNotified(); }

 private:
  Interrupt() = default;
  void Run();

  absl::Notification armed_;
  std::atomic<bool> taken_{false};  // by whoever notifies interrupted_
  absl::Notification interrupted_;
};

}  // namespace regroup

#endif  // CLIENT_INTERRUPT_H_
