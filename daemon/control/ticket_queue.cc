#include "daemon/control/ticket_queue.h"

#include <algorithm>
#include <utility>

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

std::shared_ptr<TicketQueue::Request> TicketQueue::Push(std::vector<int64_t> keys,
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

TicketQueue::Place TicketQueue::Enter(std::vector<int64_t> keys) {
  Place place;
  place.queue_ = this;
  place.grant_ = std::make_shared<Place::Grant>();
  // A grant that comes after the place was given up gives its ticket back at once.
  place.request_ = Push(std::move(keys), [grant = place.grant_](Ticket ticket) {
    absl::MutexLock lock(&grant->mutex);
    if (grant->given_up) return;
    grant->granted = true;
    grant->ticket = std::move(ticket);
  });
  return place;
}

TicketQueue::Place& TicketQueue::Place::operator=(Place&& other) noexcept {
  if (this != &other) {
    Leave();
    queue_ = std::exchange(other.queue_, nullptr);
    request_ = std::move(other.request_);
    grant_ = std::move(other.grant_);
  }
  return *this;
}

absl::StatusOr<TicketQueue::Ticket> TicketQueue::Place::Wait(Cancellation& cancellation) {
  const Cancellation::Hook hook(cancellation, [grant = grant_] {
    absl::MutexLock lock(&grant->mutex);
    grant->cancelled = true;
  });
  {
    absl::MutexLock lock(&grant_->mutex);
    const auto over = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(grant_->mutex) {
      return grant_->granted || grant_->cancelled;
    };
    grant_->mutex.Await(absl::Condition(&over));
    if (!grant_->cancelled) return std::move(grant_->ticket);
  }
  return cancellation.status();
}

bool TicketQueue::Place::WaitFor(absl::Duration timeout) {
  absl::MutexLock lock(&grant_->mutex);
  return grant_->mutex.AwaitWithTimeout(absl::Condition(&grant_->granted), timeout);
}

void TicketQueue::Place::Leave() {
  if (grant_ == nullptr) return;
  Ticket unused;
  {
    absl::MutexLock lock(&grant_->mutex);
    grant_->given_up = true;
    unused = std::move(grant_->ticket);
    if (grant_->granted && !unused.held()) return;  // taken: its holder gives it back
  }
  queue_->Leave(request_);
}

}  // namespace regroup
