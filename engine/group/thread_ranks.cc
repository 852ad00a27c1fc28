#include "engine/group/thread_ranks.h"

#include <thread>

#include "gtest/gtest.h"

namespace regroup {

void RunRanks(const std::vector<int>& ranks, const std::function<void(int)>& body) {
  std::vector<std::thread> threads;
  threads.reserve(ranks.size());
  for (const int rank : ranks) threads.emplace_back([&body, rank] { body(rank); });
  for (std::thread& thread : threads) thread.join();
}

void RunInGroup(const std::vector<int>& ranks, absl::Duration timeout,
                const std::function<void(int, std::unique_ptr<Group>)>& body) {
  absl::StatusOr<std::unique_ptr<RendezvousServer>> server = RendezvousServer::Start();
  ASSERT_TRUE(server.ok()) << server.status();
  const RendezvousAddress address{"127.0.0.1", (*server)->port(), "test/1"};
  RunRanks(ranks, [&](int rank) {
    GroupOptions options;
    options.engine = "tested";
    options.name = "dp";
    options.ranks = ranks;
    options.rank = rank;
    options.host = "127.0.0.1";
    options.timeout = timeout;
    absl::StatusOr<std::unique_ptr<Group>> group = Group::Form(options, address);
    ASSERT_TRUE(group.ok()) << group.status();
    body(rank, *std::move(group));
  });
}

}  // namespace regroup
