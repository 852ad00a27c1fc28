// A clock for tests: it stands still but for what the test and the client's pauses add.
#ifndef CLIENT_FAKE_CLOCK_H_
#define CLIENT_FAKE_CLOCK_H_

#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "client/client_options.h"

namespace regroup {

class FakeClock final : public ClientClock {
 public:
  absl::Time Now() override {
    absl::MutexLock lock(&mutex_);
    return now_;
  }

  // Takes no time: only this clock goes on.
  bool Wait(absl::Duration duration, const absl::Notification* cancel) override {
    absl::MutexLock lock(&mutex_);
    pauses_.push_back(duration);
    now_ += duration;
    return cancel == nullptr || !cancel->HasBeenNotified();
  }

  void Advance(absl::Duration duration) {
    absl::MutexLock lock(&mutex_);
    now_ += duration;
  }

  std::vector<absl::Duration> pauses() const {
    absl::MutexLock lock(&mutex_);
    return pauses_;
  }

 private:
  mutable absl::Mutex mutex_;
  absl::Time now_ ABSL_GUARDED_BY(mutex_) = absl::UnixEpoch();
  std::vector<absl::Duration> pauses_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace regroup

#endif  // CLIENT_FAKE_CLOCK_H_
