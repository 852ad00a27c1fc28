#include "client/interrupt.h"

#include <signal.h>
#include <unistd.h>

#include <thread>

namespace regroup {
namespace {

constexpr int kExitInterrupted = 128 + SIGINT;

sigset_t InterruptSet() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGINT);
  return set;
}

}  // namespace

Interrupt* Interrupt::Install() {
  static auto* const interrupt = [] {
    // Threads inherit the mask, so the signal reaches nobody but the one that waits for it.
    const sigset_t set = InterruptSet();
    pthread_sigmask(SIG_BLOCK, &set, nullptr);
    auto* made = new Interrupt();
    std::thread([made] { made->Run(); }).detach();
    return made;
  }();
  return interrupt;
}

const absl::Notification* Interrupt::Arm() {
  if (!armed_.HasBeenNotified()) armed_.Notify();
  return &interrupted_;
}

void Interrupt::Stop() {
  if (!taken_.exchange(true)) interrupted_.Notify();
}

void Interrupt::Run() {
  const sigset_t set = InterruptSet();
  while (true) {
    int signal = 0;
    if (sigwait(&set, &signal) != 0) continue;
    if (!armed_.HasBeenNotified() || taken_.exchange(true)) _exit(kExitInterrupted);
    interrupted_.Notify();
  }
}

}  // namespace regroup
