#include "client/client_options.h"

#include "absl/time/clock.h"

namespace regroup {
namespace {

class RealClock final : public ClientClock {
 public:
  absl::Time Now() override { return absl::Now(); }

  bool Wait(absl::Duration duration, const absl::Notification* cancel) override {
    if (cancel != nullptr) return !cancel->WaitForNotificationWithTimeout(duration);
    absl::SleepFor(duration);
    return true;
  }
};

}  // namespace

ClientClock* ClientClock::Real() {
  static auto* const clock = new RealClock();
  return clock;
}

}  // namespace regroup
