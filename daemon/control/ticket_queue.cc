#include "daemon/control/ticket_queue.h"

#include <algorithm>
#include <utility>

#include "absl/synchronization/notification.h"

namespace regroup {

TicketQueue::Ticket::Ticket(Ticket&& other) noexcept
    : queue_(std::exchange(other.queue_, nullptr)), request_(std::move(other.request_)) {}

TicketQueue::Ticket& TicketQueue::Ticket::operator=(Ticket&& other) noexcept {
  if (this != &other) {
    Release();
    queue_ = std::exchange(other.queue_, nullptr);
    request_ = std::move(other.request_);
  }
  return *this;
}

void TicketQueue::Ticket::Release() {
  if (queue_ != nullptr) std::exchange(queue_, nullptr)->Leave(request_);
}

bool TicketQueue::BecameHead(Request& request) { return ++request.heads == request.keys.size(); }

std::shared_ptr<TicketQueue::Request> TicketQueue::Enter(std::vector<int64_t> keys,
                                                         std::function<void(Ticket)> granted) {
  std::sort(keys.begin(), keys.end());
  keys.erase(std::unique(keys.begin(), keys.end()), keys.end());
  auto request = std::make_shared<Request>();
  request->keys = std::move(keys);
  request->granted = std::move(granted);
  bool ready = request->keys.empty();
  {
    absl::MutexLock lock(&mutex_);
    for (int64_t key : request->keys) {
      auto& queue = queues_[key];
      queue.push_back(request);
      if (queue.size() == 1) ready = BecameHead(*request);
    }
  }
  if (ready) request->granted(Ticket(this, request));
  return request;
}

void TicketQueue::Leave(const std::shared_ptr<Request>& request) {
  Granted granted;
  {
    absl::MutexLock lock(&mutex_);
    for (int64_t key : request->keys) {
      const auto entry = queues_.find(key);
      if (entry == queues_.end()) continue;
      auto& queue = entry->second;
      const auto place = std::find(queue.begin(), queue.end(), request);
      if (place == queue.end()) continue;
      const bool was_head = place == queue.begin();
      queue.erase(place);
      if (queue.empty()) {
        queues_.erase(entry);
      } else if (was_head && BecameHead(*queue.front())) {
        granted.push_back(queue.front());
      }
    }
  }
  for (const auto& next : granted) next->granted(Ticket(this, next));
}

void TicketQueue::AcquireAsync(std::vector<int64_t> keys, std::function<void(Ticket)> granted) {
  Enter(std::move(keys), std::move(granted));
}

absl::StatusOr<TicketQueue::Ticket> TicketQueue::Acquire(std::vector<int64_t> keys,
                                                         Cancellation& cancellation) {
  if (absl::Status status = cancellation.status(); !status.ok()) return status;
  struct Wait {
    absl::Notification woken;  // granted or cancelled
    absl::Mutex mutex;
    bool over ABSL_GUARDED_BY(mutex) = false;
    Ticket ticket ABSL_GUARDED_BY(mutex);
  };
  auto wait = std::make_shared<Wait>();
  // Whichever comes first decides; a grant that comes late gives its ticket back at once.
  const std::shared_ptr<Request> request = Enter(std::move(keys), [wait](Ticket ticket) {
    absl::MutexLock lock(&wait->mutex);
    if (wait->over) return;
    wait->over = true;
    wait->ticket = std::move(ticket);
    wait->woken.Notify();
  });
  {
    const Cancellation::Hook hook(cancellation, [wait] {
      absl::MutexLock lock(&wait->mutex);
      if (wait->over) return;
      wait->over = true;
      wait->woken.Notify();
    });
    wait->woken.WaitForNotification();
  }
  Ticket ticket;
  {
    absl::MutexLock lock(&wait->mutex);
    ticket = std::move(wait->ticket);
  }
  if (ticket.held()) return ticket;
  Leave(request);
  return cancellation.status();
}

}  // namespace regroup
