// Lets commands take turns: a ticket covers a set of keys (ranks, engines), all taken at once.
#ifndef DAEMON_CONTROL_TICKET_QUEUE_H_
#define DAEMON_CONTROL_TICKET_QUEUE_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "daemon/control/cancellation.h"

namespace regroup {

// One queue a key, first come first served. A request enters the queues of all of its keys in one
// step and is granted when it is at the head of each. So requests that share a key are granted in
// the order in which they came, never two at a time, and there is no deadlock: the oldest request
// is always granted.
//
// Thread safe. Outlives its tickets.
class TicketQueue {
  struct Request;

 public:
  // Move only; gives its keys back when destroyed.
  class Ticket {
   public:
    Ticket() = default;
    Ticket(Ticket&& other) noexcept;
    Ticket& operator=(Ticket&& other) noexcept;
    ~Ticket() { Release(); }

    bool held() const { return queue_ != nullptr; }
    void Release();

   private:
    friend class TicketQueue;
    Ticket(TicketQueue* queue, std::shared_ptr<Request> request)
        : queue_(queue), request_(std::move(request)) {}

    TicketQueue* queue_ = nullptr;
    std::shared_ptr<Request> request_;
  };

  // A place in the queues, taken before anybody waits for it. Move only; gives the place, or a
  // ticket that nobody took, back when destroyed. Used by one thread at a time.
  class Place {
   public:
    Place() = default;  // none
    Place(Place&& other) = default;
    Place& operator=(Place&& other) noexcept;
    ~Place() { Leave(); }

    // Blocks until granted. Errors: the cancellation's. At most one call returns a ticket.
    absl::StatusOr<Ticket> Wait(Cancellation& cancellation);
    // True once granted: Wait returns at once then.
    bool WaitFor(absl::Duration timeout);

   private:
    friend class TicketQueue;
    struct Grant {
      absl::Mutex mutex;
      bool given_up ABSL_GUARDED_BY(mutex) = false;
      bool granted ABSL_GUARDED_BY(mutex) = false;
      bool cancelled ABSL_GUARDED_BY(mutex) = false;
      Ticket ticket ABSL_GUARDED_BY(mutex);
    };
    void Leave();

    TicketQueue* queue_ = nullptr;
    std::shared_ptr<Request> request_;
    std::shared_ptr<Grant> grant_;
  };

  // Enters the queues. No key: granted at once.
  Place Enter(std::vector<int64_t> keys);

  // Enter and Wait.
  absl::StatusOr<Ticket> Acquire(std::vector<int64_t> keys, Cancellation& cancellation) {
    return Enter(std::move(keys)).Wait(cancellation);
  }

  // Calls `granted` once, on this thread or on the one that released what was waited for; it must
  // not block.
  void AcquireAsync(std::vector<int64_t> keys, std::function<void(Ticket)> granted) {
    Push(std::move(keys), std::move(granted));
  }

 private:
  struct Request {
    std::vector<int64_t> keys;  // distinct
    size_t heads = 0;           // of how many of its queues it is the head
    std::function<void(Ticket)> granted;
  };
  using Granted = std::vector<std::shared_ptr<Request>>;

  std::shared_ptr<Request> Push(std::vector<int64_t> keys, std::function<void(Ticket)> granted);
  // Takes the request out of its queues, granted or not.
  void Leave(const std::shared_ptr<Request>& request);
  bool BecameHead(Request& request) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  absl::Mutex mutex_;
  absl::flat_hash_map<int64_t, std::deque<std::shared_ptr<Request>>> queues_
      ABSL_GUARDED_BY(mutex_);
};

}  // namespace regroup

#endif  // DAEMON_CONTROL_TICKET_QUEUE_H_
