// Asks one operation to end. Who asks says why; the operation looks when it can.
#ifndef DAEMON_CONTROL_CANCELLATION_H_
#define DAEMON_CONTROL_CANCELLATION_H_

#include <functional>
#include <map>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"

namespace regroup {

// CANCELLED with reason CANCELLED.
absl::Status CancelledError(const std::string& why);

// UNAVAILABLE with reason CANCELLED: the daemon accepts nothing more.
absl::Status StoppingError();

// Who asks an operation to end.
enum class CancelledBy {
  kDaemon,   // it is stopping, the engine failed or is being deleted
  kClient,   // went away: nobody hears the answer
  kRequest,  // CancelOperation
};

// Thread safe.
class Cancellation {
 public:
  // `why` is not OK. The first one stays.
  void Cancel(absl::Status why, CancelledBy by = CancelledBy::kDaemon);

  absl::Status status() const;  // OK unless cancelled
  bool cancelled_by(CancelledBy by) const;
  bool cancelled() const { return !status().ok(); }

  // While a Hook lives, its callback runs once, when cancelled (at once if that was before). The
  // callback must not use this Cancellation.
  class Hook {
   public:
    Hook(Cancellation& cancellation, std::function<void()> callback);
    Hook(const Hook&) = delete;
    Hook& operator=(const Hook&) = delete;
    ~Hook();  // waits for a callback that runs

   private:
    Cancellation& cancellation_;
    int id_ = 0;
  };

 private:
  mutable absl::Mutex mutex_;
  absl::Status why_ ABSL_GUARDED_BY(mutex_);
  CancelledBy by_ ABSL_GUARDED_BY(mutex_) = CancelledBy::kDaemon;
  int last_id_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<int, std::function<void()>> callbacks_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace regroup

#endif  // DAEMON_CONTROL_CANCELLATION_H_
