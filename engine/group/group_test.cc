#include "engine/group/group.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <thread>

#include "absl/strings/match.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "engine/group/agreement.h"
#include "engine/group/comm_status.h"
#include "engine/group/thread_ranks.h"
#include "gtest/gtest.h"

namespace regroup {
namespace {

constexpr absl::Duration kTimeout = absl::Seconds(20);

class GroupSizes : public testing::TestWithParam<std::vector<int>> {};

TEST_P(GroupSizes, AllGather_PutsShardsInGroupOrder) {
  RunInGroup(GetParam(), kTimeout, [](int rank, std::unique_ptr<Group> group) {
    const at::Tensor shard = at::full({5}, static_cast<float>(rank));
    const at::Tensor full = at::empty({5 * group->size()});
    ASSERT_TRUE(group->AllGather(shard, full, "gather")->Wait().ok());
    for (int i = 0; i < group->size(); ++i) {
      EXPECT_EQ(full[5 * i + 4].item<float>(), group->options().ranks[i]);
    }
  });
}

TEST_P(GroupSizes, ReduceScatter_SumsInGroupOrder) {
  RunInGroup(GetParam(), kTimeout, [](int rank, std::unique_ptr<Group> group) {
    const int n = group->size();
    const at::Tensor full = at::arange(0, 3 * n, at::kFloat) * static_cast<float>(rank + 1);
    const at::Tensor shard = at::empty({3});
    ASSERT_TRUE(group->ReduceScatter(full, shard, "reduce")->Wait().ok());
    float factor = 0;
    for (const int member : group->options().ranks) factor += static_cast<float>(member + 1);
    for (int i = 0; i < 3; ++i) {
      EXPECT_EQ(shard[i].item<float>(), factor * static_cast<float>(3 * group->index() + i));
    }
  });
}

TEST_P(GroupSizes, Exchange_CarriesShortEmptyAndLongValues) {
  RunInGroup(GetParam(), kTimeout, [](int rank, std::unique_ptr<Group> group) {
    for (const size_t length : {0, 1, 504, 505, 70000}) {
      // Lengths that differ between members too.
      const std::string mine(group->index() % 2 == 0 ? length : length / 2,
                             static_cast<char>('a' + rank));
      const absl::StatusOr<std::vector<std::string>> all = group->Exchange(mine, "exchange");
      ASSERT_TRUE(all.ok()) << all.status();
      for (int i = 0; i < group->size(); ++i) {
        EXPECT_EQ((*all)[i], std::string(i % 2 == 0 ? length : length / 2,
                                         static_cast<char>('a' + group->options().ranks[i])));
      }
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, GroupSizes,
                         testing::Values(std::vector<int>{3}, std::vector<int>{1, 2},
                                         std::vector<int>{2, 0}, std::vector<int>{0, 1, 2, 5}));

TEST(Group, Overlapped_ManyInFlight_KeepTheirData) {
  RunInGroup({4, 7}, kTimeout, [](int rank, std::unique_ptr<Group> group) {
    std::vector<at::Tensor> full;
    std::vector<std::unique_ptr<Pending>> pending;
    for (int k = 0; k < 20; ++k) {
      full.push_back(at::empty({2000}));
      pending.push_back(group->AllGather(at::full({1000}, static_cast<float>(100 * k + rank)),
                                         full[k], "gather"));
    }
    for (int k = 19; k >= 0; --k) {
      ASSERT_TRUE(pending[k]->Wait().ok());
      EXPECT_EQ(full[k][0].item<float>(), static_cast<float>(100 * k + 4));
      EXPECT_EQ(full[k][1999].item<float>(), static_cast<float>(100 * k + 7));
    }
  });
}

TEST(Group, SendRecv_MatchByOrderPerPair) {
  RunInGroup({0, 1}, kTimeout, [](int rank, std::unique_ptr<Group> group) {
    std::vector<std::unique_ptr<Pending>> pending;
    std::vector<at::Tensor> tensors;
    for (int k = 0; k < 3; ++k) {
      tensors.push_back(rank == 0 ? at::full({4}, static_cast<float>(k)) : at::zeros({4}));
      pending.push_back(rank == 0 ? group->Send(tensors[k], 1, "send")
                                  : group->Recv(tensors[k], 0, "receive"));
    }
    for (auto& operation : pending) ASSERT_TRUE(operation->Wait().ok());
    for (int k = 0; k < 3; ++k) EXPECT_EQ(tensors[k][3].item<float>(), static_cast<float>(k));
  });
}

TEST(Group, LatePeer_DeadlineNamesItAndGroup) {
  absl::Notification done;
  RunInGroup({1, 2}, absl::Milliseconds(300), [&](int rank, std::unique_ptr<Group> group) {
    if (rank == 2) {
      done.WaitForNotification();
      return;
    }
    const absl::Status status = group->Barrier("barrier");
    EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
    EXPECT_EQ(ReasonOf(status), "TIMEOUT");
    EXPECT_TRUE(absl::StrContains(status.message(), "waiting for rank 2")) << status;
    EXPECT_TRUE(absl::StrContains(status.message(), "group dp of ranks 1-2")) << status;
    EXPECT_FALSE(group->Barrier("second").ok());
    done.Notify();
  });
}

TEST(Group, DifferentOperations_NeverExchangeData) {
  RunInGroup({0, 1}, absl::Milliseconds(500), [](int rank, std::unique_ptr<Group> group) {
    const at::Tensor full = at::zeros({8});
    // Of one size: only what they are tells them apart.
    const absl::Status status =
        group->AllGather(at::full({4}, 7.0F), full, rank == 0 ? "gather a" : "gather b")->Wait();
    EXPECT_FALSE(status.ok());
    EXPECT_EQ(group->failure(), status);
    EXPECT_EQ(full.narrow(0, rank == 0 ? 4 : 0, 4).sum().item<float>(), 0);
  });
}

TEST(Group, AbortWhileIssuing_EndsEveryOperation) {
  for (int round = 0; round < 20; ++round) {
    absl::Notification started, aborted;
    RunInGroup({0, 1, 2}, kTimeout, [&](int rank, std::unique_ptr<Group> group) {
      if (rank != 0) {
        aborted.WaitForNotification();
        return;
      }
      std::thread aborter([&] {
        started.WaitForNotification();
        group->Abort(absl::CancelledError("deleted"));
      });
      std::vector<std::unique_ptr<Pending>> pending;
      for (int k = 0; k < 200; ++k) {
        if (k == 20 + round) started.Notify();
        pending.push_back(group->AllGather(at::zeros({4}), at::empty({12}), "gather"));
      }
      for (auto& operation : pending) {
        EXPECT_EQ(operation->Wait().code(), absl::StatusCode::kCancelled);
      }
      aborter.join();
      aborted.Notify();
    });
  }
}

TEST(Group, PeerGone_IsUnavailableAtOnce) {
  RunInGroup({0, 1}, kTimeout, [](int rank, std::unique_ptr<Group> group) {
    ASSERT_TRUE(group->Barrier("first").ok());
    if (rank == 1) return;  // its group is destroyed
    const absl::Time start = absl::Now();
    const absl::Status status = group->Barrier("second");
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
    EXPECT_EQ(ReasonOf(status), "RANK_LOST");
    EXPECT_LT(absl::Now() - start, kTimeout / 2);
  });
}

TEST(Group, Abort_EndsAWaitWithItsReason) {
  absl::Notification aborted;
  RunInGroup({0, 1}, kTimeout, [&](int rank, std::unique_ptr<Group> group) {
    if (rank == 1) {
      aborted.WaitForNotification();
      return;
    }
    std::unique_ptr<Pending> pending = group->AllGather(at::zeros({4}), at::empty({8}), "gather");
    RunRanks({0}, [&](int) { group->Abort(absl::CancelledError("deleted by a client")); });
    const absl::Status status = pending->Wait();
    EXPECT_EQ(status.code(), absl::StatusCode::kCancelled) << status;
    EXPECT_TRUE(absl::StrContains(status.message(), "deleted by a client")) << status;
    EXPECT_FALSE(group->Barrier("after").ok());
    aborted.Notify();
  });
}

TEST(Group, Form_OutsideRank_IsRefused) {
  GroupOptions options;
  options.ranks = {0, 1};
  options.rank = 2;
  EXPECT_EQ(Group::Form(options, {}).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(Agreement, SameValues_Agree) {
  RunInGroup({0, 3, 1}, kTimeout, [](int, std::unique_ptr<Group> group) {
    EXPECT_TRUE(Agree(*group, "create", {"a", "b"}).ok());
    EXPECT_TRUE(Agree(*group, "create", {}).ok());
  });
}

TEST(Agreement, TimeInAgreements_CountsWhatThisThreadSpent) {
  RunInGroup({0, 1}, kTimeout, [](int, std::unique_ptr<Group> group) {
    const absl::Duration before = TimeInAgreements();
    EXPECT_EQ(before, absl::ZeroDuration()) << "a thread of its own";
    const auto start = std::chrono::steady_clock::now();
    EXPECT_TRUE(Agree(*group, "create", {"a"}).ok());
    EXPECT_GT(TimeInAgreements(), before);
    EXPECT_LE(TimeInAgreements() - before,
              absl::FromChrono(std::chrono::steady_clock::now() - start));
    const absl::Duration after = TimeInAgreements();
    EXPECT_TRUE(group->Barrier("not an agreement").ok());
    EXPECT_EQ(TimeInAgreements(), after);
  });
}

TEST(Agreement, Mismatch_SameErrorOnEveryMember) {
  absl::Mutex mutex;
  std::vector<absl::Status> errors;
  RunInGroup({1, 2, 4}, kTimeout, [&](int rank, std::unique_ptr<Group> group) {
    const absl::Status status =
        rank == 4 ? Agree(*group, "create", {"a", "c"}) : Agree(*group, "create", {"a", "b", "d"});
    ASSERT_TRUE(group->Barrier("still usable").ok());
    absl::MutexLock lock(&mutex);
    errors.push_back(status);
  });
  ASSERT_EQ(errors.size(), 3u);
  for (const absl::Status& error : errors) {
    EXPECT_EQ(error, errors[0]);
    EXPECT_EQ(error.code(), absl::StatusCode::kAborted);
    EXPECT_EQ(ReasonOf(error), "RANKS_DISAGREE");
    EXPECT_TRUE(absl::StrContains(error.message(),
                                  "engine tested, phase create, group dp of ranks 1-2,4: ranks "
                                  "disagree at position 1: ranks 1-2 "
                                  "have 'b' (of 3 values), ranks 4 have 'c' (of 2 values)"))
        << error;
  }
}

TEST(Agreement, LongValuesAndErrors_GiveShortMessages) {
  RunInGroup({0, 1}, absl::Seconds(10), [](int rank, std::unique_ptr<Group> group) {
    const std::string own(100000, rank == 0 ? 'a' : 'b');
    const absl::Status status = Agree(*group, "create", {"same", own});
    EXPECT_EQ(status.code(), absl::StatusCode::kAborted);
    EXPECT_LT(status.message().size(), 4096u);
    EXPECT_NE(status.message().find("'aaa"), absl::string_view::npos);
    EXPECT_NE(status.message().find("'bbb"), absl::string_view::npos);
    const absl::Status failed =
        Agree(*group, "load", {}, rank == 0 ? absl::InternalError(own) : absl::OkStatus());
    EXPECT_EQ(failed.code(), absl::StatusCode::kInternal);
    EXPECT_LT(failed.message().size(), 4096u);
  });
}

TEST(Agreement, FramesKeepFieldsApart) {
  RunInGroup({0, 1}, kTimeout, [](int rank, std::unique_ptr<Group> group) {
    const std::vector<std::string> values =
        rank == 0 ? std::vector<std::string>{"ab", ""} : std::vector<std::string>{"a", "b"};
    EXPECT_EQ(Agree(*group, "x", values).code(), absl::StatusCode::kAborted);
  });
}

TEST(Agreement, FailedMember_IsReportedToAllWithoutWaiting) {
  RunInGroup({0, 1, 2}, kTimeout, [](int rank, std::unique_ptr<Group> group) {
    const absl::Status failure =
        rank == 1 ? WithReason(absl::ResourceExhaustedError("no memory left"), "MEMORY")
                  : absl::OkStatus();
    const absl::Status status = Agree(*group, "relayout", {"a"}, failure);
    EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
    EXPECT_EQ(ReasonOf(status), "MEMORY");
    EXPECT_TRUE(absl::StrContains(status.message(), "rank 1 failed: no memory left")) << status;
  });
}

}  // namespace
}  // namespace regroup
