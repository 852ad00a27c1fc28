// How a regroup::Client behaves. Included by client/client.h.
#ifndef CLIENT_CLIENT_OPTIONS_H_
#define CLIENT_CLIENT_OPTIONS_H_

#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "absl/types/optional.h"

namespace regroup {

// Where a client takes the time from, and how it waits between two attempts. A test gives its own,
// so that nothing sleeps. Thread safe; called on the threads that call the client.
class ClientClock {
 public:
  virtual ~ClientClock() = default;

  virtual absl::Time Now() = 0;

  // Returns after `duration`, with true; or with false, as soon as `cancel` (which may be null) is
  // notified.
  virtual bool Wait(absl::Duration duration, const absl::Notification* cancel) = 0;

  // The machine's. Never destroyed.
  static ClientClock* Real();
};

struct ClientOptions {
  // Of a unary call that is not given a timeout of its own: its retries included.
  absl::Duration call_timeout = absl::Seconds(20);

  // How often a call that may be sent again is sent at most, as long as the server cannot be
  // reached. 1 = never again.
  int max_attempts = 3;

  // The pause after the first attempt; it doubles with each further one, up to the longest. Each
  // pause is cut at random, by up to a half, so that clients that lost the same server do not come
  // back together.
  absl::Duration first_backoff = absl::Milliseconds(100);
  absl::Duration longest_backoff = absl::Seconds(1);

  // A stream that is silent for this long has the server asked whether it still answers; if not, it
  // ends.
  absl::Duration probe_after = absl::Seconds(15);

  // How long Wait goes on asking a server that has gone away.
  absl::Duration lost_timeout = absl::Seconds(10);

  // Outlives the client.
  ClientClock* clock = ClientClock::Real();
};

// Of one call.
struct CallOptions {
  // Ends the call from any thread, within about 50 ms: CANCELLED. Train first asks the server to
  // end the operation, and ends with the step that still runs; if the server does not answer that
  // within 2 s, Train ends then. May be null; outlives the call.
  const absl::Notification* cancel = nullptr;

  // When to give up: DEADLINE_EXCEEDED. Not set: the client's call_timeout for a unary call, never
  // for Wait, Finish, Train and Generate.
  absl::optional<absl::Duration> timeout;
};

}  // namespace regroup

#endif  // CLIENT_CLIENT_OPTIONS_H_
