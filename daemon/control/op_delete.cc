#include <memory>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "daemon/control/operations.h"

namespace regroup {
namespace {

// A turn that may be waited for several times.
struct Turn {
  absl::Notification come;
  TicketQueue::Ticket ticket;
};

}  // namespace

absl::Status RunDelete(OperationRun& run, uint64_t uid, const std::string& name) {
  run.SetPhase("cancel");
  auto turn = std::make_shared<Turn>();
  run.context().engine_locks().AcquireAsync({static_cast<int64_t>(uid)},
                                            [turn](TicketQueue::Ticket ticket) {
                                              turn->ticket = std::move(ticket);
                                              turn->come.Notify();
                                            });
  const OperationTiming& timing = run.context().timing();
  const std::string reason = absl::StrCat("engine ", name, " is being deleted");
  if (!turn->come.WaitForNotificationWithTimeout(timing.delete_cancel)) {
    run.commands().AbortRunning(uid, reason);
    if (!turn->come.WaitForNotificationWithTimeout(timing.delete_abort)) {
      run.commands().KillRunning(uid, absl::StrCat("was stuck when engine ", name, " was deleted"));
      turn->come.WaitForNotification();
    }
  }
  run.SetPhase("drop");
  if (const absl::optional<EngineRecord> engine = run.engines().Get(uid)) {
    run.commands().Drop(engine->members, uid, name);
  }
  run.engines().Apply(uid, EngineEvent::kDeleted).IgnoreError();
  turn->ticket.Release();
  return absl::OkStatus();
}

}  // namespace regroup
