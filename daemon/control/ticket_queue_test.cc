#include "daemon/control/ticket_queue.h"

#include <atomic>
#include <random>
#include <thread>

#include "absl/synchronization/notification.h"
#include "gtest/gtest.h"

namespace regroup {
namespace {

using Ticket = TicketQueue::Ticket;

Ticket Take(TicketQueue& queue, std::vector<int64_t> keys) {
  Cancellation never;
  return *queue.Acquire(std::move(keys), never);
}

TEST(TicketQueue, Acquire_FreeKeys_IsGrantedAtOnce) {
  TicketQueue queue;
  Ticket a = Take(queue, {0, 1});
  Ticket b = Take(queue, {2, 2});  // a key given twice is taken once
  EXPECT_TRUE(a.held());
  EXPECT_TRUE(b.held());
  EXPECT_TRUE(Take(queue, {}).held());
}

TEST(TicketQueue, Acquire_SharedKey_IsGrantedInTheOrderOfArrival) {
  TicketQueue queue;
  Ticket first = Take(queue, {0, 1});
  std::vector<int> order;
  std::vector<Ticket> tickets(4);
  const auto ask = [&](int name, std::vector<int64_t> keys) {
    queue.AcquireAsync(std::move(keys), [&order, &tickets, name](Ticket ticket) {
      order.push_back(name);
      tickets[name] = std::move(ticket);
    });
  };
  ask(1, {1, 2});  // waits for key 1; holds back whoever wants 2
  ask(2, {2});
  ask(3, {3});  // shares nothing
  EXPECT_EQ(order, (std::vector<int>{3}));
  first.Release();
  EXPECT_EQ(order, (std::vector<int>{3, 1}));
  tickets[1].Release();
  EXPECT_EQ(order, (std::vector<int>{3, 1, 2}));
}

TEST(TicketQueue, Acquire_TwoEnginesOnSharedRanks_TakeTurns) {
  TicketQueue queue;
  Ticket held = Take(queue, {0});
  std::vector<int> order;
  std::vector<Ticket> tickets;
  std::function<void(int, int)> ask = [&](int engine, int left) {
    queue.AcquireAsync({0, engine}, [&, engine, left](Ticket ticket) {
      order.push_back(engine);
      if (left > 1) ask(engine, left - 1);  // asks for its next step while it holds this one
      tickets.push_back(std::move(ticket));
    });
  };
  ask(1, 3);
  ask(2, 3);
  held.Release();
  for (size_t i = 0; i < tickets.size(); ++i) tickets[i].Release();
  EXPECT_EQ(order, (std::vector<int>{1, 2, 1, 2, 1, 2}));
}

TEST(TicketQueue, Acquire_Cancelled_ReturnsWhyAndLetsOthersThrough) {
  TicketQueue queue;
  Ticket held = Take(queue, {0});
  Cancellation cancellation;
  absl::Status status;
  std::thread waiter([&] { status = queue.Acquire({0, 1}, cancellation).status(); });
  cancellation.Cancel(CancelledError("deleted"));
  waiter.join();
  EXPECT_EQ(status.code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(status.message(), "deleted");
  EXPECT_TRUE(Take(queue, {1}).held());
  held.Release();
  EXPECT_TRUE(Take(queue, {0, 1}).held());
  EXPECT_FALSE(queue.Acquire({5}, cancellation).ok());
}

TEST(TicketQueue, Place_KeepsItsOrderWhoeverWaitsFirst) {
  TicketQueue queue;
  Cancellation never;
  TicketQueue::Place first = queue.Enter({0});
  TicketQueue::Place second = queue.Enter({0});
  EXPECT_FALSE(second.WaitFor(absl::ZeroDuration()));
  EXPECT_TRUE(first.WaitFor(absl::ZeroDuration()));
  { const Ticket ticket = *first.Wait(never); }
  EXPECT_TRUE(second.WaitFor(absl::ZeroDuration()));
  { const TicketQueue::Place given_up = std::move(second); }  // its ticket goes back with it
  EXPECT_TRUE(queue.Enter({0}).WaitFor(absl::ZeroDuration()));
}

TEST(TicketQueue, Acquire_ManyThreads_NeverShareAKeyAndAllFinish) {
  constexpr int kKeys = 6;
  constexpr int kThreads = 8;
  constexpr int kRounds = 300;
  TicketQueue queue;
  std::atomic<int> holders[kKeys] = {};
  std::atomic<int> clashes{0};
  std::vector<std::thread> threads;
  threads.reserve(kThreads);
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937 random(t);
      for (int round = 0; round < kRounds; ++round) {
        std::vector<int64_t> keys;
        for (int key = 0; key < kKeys; ++key) {
          if (random() % 3 == 0) keys.push_back(key);
        }
        Cancellation cancellation;
        std::thread canceller;
        if (random() % 8 == 0) {
          canceller = std::thread([&] { cancellation.Cancel(CancelledError("changed my mind")); });
        }
        absl::StatusOr<Ticket> ticket = queue.Acquire(keys, cancellation);
        if (ticket.ok()) {
          for (int64_t key : keys) clashes += holders[key]++ != 0;
          std::this_thread::yield();
          for (int64_t key : keys) holders[key]--;
          ticket->Release();
        }
        if (canceller.joinable()) canceller.join();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(clashes, 0);
  EXPECT_TRUE(Take(queue, {0, 1, 2, 3, 4, 5}).held());
}

}  // namespace
}  // namespace regroup
