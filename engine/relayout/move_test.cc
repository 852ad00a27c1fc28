#include "engine/relayout/move.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>
#include <map>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "engine/group/comm_status.h"
#include "engine/group/thread_ranks.h"
#include "engine/relayout/own_memory.h"

namespace regroup {
namespace {

using ::testing::HasSubstr;

constexpr absl::Duration kTimeout = absl::Seconds(30);

Layout MakeLayout(std::vector<int> ranks, Placement placement = Placement::kShard) {
  Layout layout;
  layout.dp = static_cast<int>(ranks.size());
  layout.ranks = std::move(ranks);
  layout.placement = placement;
  return layout;
}

ParamTable MakeTable(const std::vector<int64_t>& unit_sizes, DType dtype = DType::kFp32) {
  ParamTable table(dtype);
  for (size_t unit = 0; unit < unit_sizes.size(); ++unit) {
    table.AddUnit(absl::StrCat("layers.", unit));
    table.AddParameter(absl::StrCat("layers.", unit, ".weight"), {unit_sizes[unit]});
  }
  return table;
}

// Bytes that depend on the unit, the slot and the element only: any bit pattern, NaNs too.
uint8_t ByteAt(int unit, int slot, int64_t element, int64_t byte) {
  const uint64_t x = (static_cast<uint64_t>(unit) * 31 + slot) * 1000003 + element * 8 + byte;
  return static_cast<uint8_t>((x * 0x9E3779B97F4A7C15ull) >> 56);
}

void Fill(int unit, int slot, const Interval& interval, const at::Tensor& tensor) {
  auto* bytes = static_cast<uint8_t*>(tensor.data_ptr());
  const int64_t width = tensor.element_size();
  for (int64_t i = 0; i < interval.size(); ++i) {
    for (int64_t b = 0; b < width; ++b) {
      bytes[i * width + b] = ByteAt(unit, slot, interval.begin + i, b);
    }
  }
}

EngineState FilledState(const ParamTable& table, const Layout& layout, int rank, int num_moments,
                        bool has_master = false) {
  EngineState state = MakeState(table, layout, rank, num_moments, has_master);
  for (size_t unit = 0; unit < state.units.size(); ++unit) {
    UnitState& part = state.units[unit];
    Fill(static_cast<int>(unit), 0, part.interval, part.weights);
    for (int k = 0; k < num_moments; ++k) {
      Fill(static_cast<int>(unit), k + 1, part.interval, part.moments[k]);
    }
    if (has_master) Fill(static_cast<int>(unit), 9, part.interval, part.master);
  }
  return state;
}

bool SameBytes(const at::Tensor& a, const at::Tensor& b) {
  return a.scalar_type() == b.scalar_type() && a.nbytes() == b.nbytes() &&
         std::memcmp(a.data_ptr(), b.data_ptr(), a.nbytes()) == 0;
}

// Padding included.
void ExpectSameState(const EngineState& actual, const EngineState& expected) {
  EXPECT_EQ(actual.layout, expected.layout);
  ASSERT_EQ(actual.units.size(), expected.units.size());
  for (size_t unit = 0; unit < expected.units.size(); ++unit) {
    EXPECT_EQ(actual.units[unit].interval, expected.units[unit].interval);
    EXPECT_TRUE(SameBytes(actual.units[unit].weights, expected.units[unit].weights)) << unit;
    const at::Tensor& master = expected.units[unit].master;
    ASSERT_EQ(actual.units[unit].master.defined(), master.defined());
    if (master.defined()) {
      EXPECT_TRUE(SameBytes(actual.units[unit].master, master)) << unit;
    }
    ASSERT_EQ(actual.units[unit].moments.size(), expected.units[unit].moments.size());
    for (size_t k = 0; k < expected.units[unit].moments.size(); ++k) {
      EXPECT_TRUE(SameBytes(actual.units[unit].moments[k], expected.units[unit].moments[k]))
          << unit << " moment " << k;
    }
  }
}

struct Outcome {
  std::map<int, EngineState> states;     // of the destination ranks
  std::map<int, absl::Status> statuses;  // of all
  MoveResult sum;
  int64_t last_progress = 0;  // summed
  int64_t total_progress = 0;
};

using Wrap = std::function<std::unique_ptr<Group>(int rank, std::unique_ptr<Group> group)>;

std::unique_ptr<Group> NoWrap(int, std::unique_ptr<Group> group) { return group; }

// Moves `sources` (by rank) as threads do that are the ranks of one process.
Outcome MoveAll(const ParamTable& table, const MoveOptions& options,
                const std::map<int, EngineState>& sources, const Wrap& wrap = NoWrap) {
  Outcome outcome;
  absl::Mutex mutex;
  RunInGroup(UnionOfRanks(options.source.ranks, options.destination.ranks), kTimeout,
             [&](int rank, std::unique_ptr<Group> group) {
               const auto source = sources.find(rank);
               auto move = Move::Prepare(table, options, rank,
                                         source == sources.end() ? nullptr : &source->second);
               ASSERT_TRUE(move.ok()) << move.status();
               absl::Status status = (*move)->Agree(wrap(rank, std::move(group)));
               ASSERT_TRUE(status.ok()) << status;
               int64_t done = 0;
               int64_t total = 0;
               const auto result = (*move)->Run([&](int64_t now, int64_t all) {
                 EXPECT_GE(now, done);
                 EXPECT_LE(now, all);
                 done = now;
                 total = all;
               });
               std::optional<EngineState> state = (*move)->TakeState();
               absl::MutexLock lock(&mutex);
               outcome.statuses[rank] = result.status();
               if (state.has_value()) outcome.states[rank] = *std::move(state);
               if (!result.ok()) return;
               outcome.sum.bytes_sent += result->bytes_sent;
               outcome.sum.bytes_received += result->bytes_received;
               outcome.sum.bytes_kept += result->bytes_kept;
               outcome.last_progress += done;
               outcome.total_progress += total;
             });
  return outcome;
}

std::map<int, EngineState> FilledStates(const ParamTable& table, const Layout& layout,
                                        int num_moments, bool has_master = false) {
  std::map<int, EngineState> states;
  for (int rank : layout.ranks) {
    states[rank] = FilledState(table, layout, rank, num_moments, has_master);
  }
  return states;
}

std::vector<int> RandomRanks(std::mt19937* random) {
  std::vector<int> ranks(5);
  std::iota(ranks.begin(), ranks.end(), 0);
  std::shuffle(ranks.begin(), ranks.end(), *random);
  ranks.resize(1 + (*random)() % 5);
  return ranks;
}

class RandomMoveTest : public ::testing::TestWithParam<int> {};

INSTANTIATE_TEST_SUITE_P(Seeds, RandomMoveTest, ::testing::Range(0, 12));

TEST_P(RandomMoveTest, Move_ThereAndBack_IsBitwiseRight) {
  std::mt19937 random(GetParam());
  std::vector<int64_t> sizes(1 + random() % 4);
  for (int64_t& size : sizes) size = random() % 3000;
  const ParamTable table = MakeTable(sizes, GetParam() % 2 == 0 ? DType::kFp32 : DType::kBf16);
  const int num_moments = GetParam() % 3;
  MoveOptions options;
  options.source = MakeLayout(RandomRanks(&random));
  options.destination = MakeLayout(RandomRanks(&random));
  const bool has_master = table.dtype() == DType::kBf16;
  options.num_moments = num_moments;
  options.has_master = has_master;
  options.reads_memory = GetParam() % 2 == 0;
  options.staging_bytes = GetParam() % 4 == 0 ? 64 << 20 : 2000;  // many small copies and meetings
  SCOPED_TRACE(absl::StrCat(options.source.ToString(), " -> ", options.destination.ToString()));

  std::map<int, EngineState> old_states =
      FilledStates(table, options.source, num_moments, has_master);
  for (auto& [rank, state] : old_states) {
    state.step = options.step = 7;
    state.data_position = options.data_position = 9;
    state.weights_version = options.weights_version = 8;
  }
  Outcome there = MoveAll(table, options, old_states);
  ASSERT_EQ(there.states.size(), options.destination.ranks.size());
  for (const auto& [rank, state] : there.states) {
    ExpectSameState(state, FilledState(table, options.destination, rank, num_moments, has_master));
    EXPECT_EQ(state.step, 7);
    EXPECT_EQ(state.data_position, 9);
    EXPECT_EQ(state.weights_version, 8);
  }
  const MovePlan plan = PlanMove(table, options.source, options.destination, 1 << 20);
  const int64_t width = DTypeBytes(table.dtype()) + 4 * (num_moments + (has_master ? 1 : 0));
  EXPECT_EQ(there.sum.bytes_sent, plan.elements_moved * width);
  EXPECT_EQ(there.sum.bytes_received, plan.elements_moved * width);
  EXPECT_EQ(there.sum.bytes_kept, plan.elements_kept * width);
  EXPECT_EQ(there.last_progress, (plan.elements_moved + plan.elements_kept) * width);
  EXPECT_EQ(there.total_progress, there.last_progress);

  std::swap(options.source, options.destination);
  const Outcome back = MoveAll(table, options, there.states);
  ASSERT_EQ(back.statuses.size(), there.statuses.size());
  for (const auto& [rank, status] : back.statuses)
    EXPECT_TRUE(status.ok()) << rank << ": " << status;
  ASSERT_EQ(back.states.size(), old_states.size());
  EXPECT_EQ(back.sum.bytes_sent, there.sum.bytes_sent);
  EXPECT_EQ(back.sum.bytes_received, there.sum.bytes_received);
  for (const auto& [rank, state] : back.states) {
    SCOPED_TRACE(rank);
    ExpectSameState(state, old_states.at(rank));
  }
}

TEST(MoveTest, Move_OfAnFp16Trainer_TakesTheLossScaleWhereverItGoes) {
  const ParamTable table = MakeTable({1000, 77}, DType::kFp16);
  MoveOptions options;
  options.source = MakeLayout({1, 2});
  options.destination = MakeLayout({2, 3, 0});
  options.num_moments = 2;
  options.has_master = true;
  options.weights_version = 1;
  std::map<int, EngineState> sources = FilledStates(table, options.source, 2, true);
  EXPECT_EQ(sources[1].loss_scale, LossScale());
  for (auto& [rank, state] : sources) state.loss_scale = LossScale{512, 77};
  const Outcome outcome = MoveAll(table, options, sources);
  ASSERT_EQ(outcome.states.size(), 3u);
  for (const auto& [rank, state] : outcome.states) {
    ExpectSameState(state, FilledState(table, options.destination, rank, 2, true));
    EXPECT_EQ(state.loss_scale, (LossScale{512, 77})) << rank;
  }
}

TEST(MoveTest, Agree_OtherLossScale_IsAbortedOnEveryMember) {
  const ParamTable table = MakeTable({64}, DType::kFp16);
  MoveOptions options;
  options.source = MakeLayout({0, 1});
  options.destination = MakeLayout({0, 1, 2});
  options.has_master = true;
  options.weights_version = 1;
  std::map<int, EngineState> sources = FilledStates(table, options.source, 0, true);
  sources[1].loss_scale->Overflowed();
  std::atomic<int> refused{0};
  RunInGroup({0, 1, 2}, kTimeout, [&](int rank, std::unique_ptr<Group> group) {
    auto move =
        Move::Prepare(table, options, rank, sources.count(rank) > 0 ? &sources[rank] : nullptr);
    ASSERT_TRUE(move.ok()) << move.status();
    const absl::Status status = (*move)->Agree(std::move(group));
    EXPECT_EQ(status.code(), absl::StatusCode::kAborted) << status;
    EXPECT_EQ(ReasonOf(status), "RANKS_DISAGREE");
    EXPECT_THAT(std::string(status.message()), HasSubstr("rank 1 has 32768"));
    ++refused;
  });
  EXPECT_EQ(refused, 3);
}

TEST(MoveTest, Move_ToReplicas_GivesEachRankAllWeightsNoMomentsAndNoMaster) {
  const ParamTable table = MakeTable({1000, 77}, DType::kBf16);
  MoveOptions options;
  options.source = MakeLayout({1, 2});
  options.destination = MakeLayout({2, 3, 0}, Placement::kReplicate);
  options.weights_version = 1;
  const Outcome outcome = MoveAll(table, options, FilledStates(table, options.source, 2, true));
  ASSERT_EQ(outcome.states.size(), 3u);
  for (const auto& [rank, state] : outcome.states) {
    ExpectSameState(state, FilledState(table, options.destination, rank, 0));
  }
}

TEST(MoveTest, Move_OneRankToItself_NeedsNoTransfer) {
  const ParamTable table = MakeTable({100});
  MoveOptions options;
  options.source = options.destination = MakeLayout({4});
  options.weights_version = 1;
  const Outcome outcome = MoveAll(table, options, FilledStates(table, options.source, 0));
  EXPECT_EQ(outcome.sum.bytes_sent, 0);
  EXPECT_EQ(outcome.sum.bytes_kept, 400);
  ExpectSameState(outcome.states.at(4), FilledState(table, options.destination, 4, 0));
}

// Flips a bit of the data of one receive, as a broken wire or memory does.
class BitFlippingGroup : public Group {
 public:
  BitFlippingGroup(std::unique_ptr<Group> group, int victim)
      : group_(std::move(group)), victim_(victim) {
    index_ = group_->index();
  }

  const GroupOptions& options() const override { return group_->options(); }
  std::unique_ptr<Pending> AllGather(const at::Tensor& shard, const at::Tensor& full,
                                     absl::string_view what) override {
    return group_->AllGather(shard, full, what);
  }
  std::unique_ptr<Pending> ReduceScatter(const at::Tensor& full, const at::Tensor& shard,
                                         absl::string_view what) override {
    return group_->ReduceScatter(full, shard, what);
  }
  std::unique_ptr<Pending> Send(const at::Tensor& tensor, int peer,
                                absl::string_view what) override {
    return group_->Send(tensor, peer, what);
  }
  std::unique_ptr<Pending> Recv(const at::Tensor& tensor, int peer,
                                absl::string_view what) override {
    std::unique_ptr<Pending> pending = group_->Recv(tensor, peer, what);
    if (received_++ != victim_) return pending;
    return std::make_unique<FlippingPending>(std::move(pending), tensor);
  }
  absl::StatusOr<std::vector<std::string>> Exchange(absl::string_view mine,
                                                    absl::string_view what) override {
    return group_->Exchange(mine, what);
  }
  void SetTimeout(absl::Duration timeout) override { group_->SetTimeout(timeout); }
  void Abort(const absl::Status& reason) override { group_->Abort(reason); }
  absl::Status failure() const override { return group_->failure(); }
  int64_t operations_issued() const override { return group_->operations_issued(); }

 private:
  class FlippingPending : public Pending {
   public:
    FlippingPending(std::unique_ptr<Pending> pending, at::Tensor tensor)
        : pending_(std::move(pending)), tensor_(std::move(tensor)) {}
    absl::Status Wait() override {
      absl::Status status = pending_->Wait();
      // The highest byte of the last element: an address becomes one that nothing lies at.
      static_cast<uint8_t*>(tensor_.data_ptr())[tensor_.nbytes() - 1] ^= 0x10;
      return status;
    }

   private:
    std::unique_ptr<Pending> pending_;
    at::Tensor tensor_;
  };

  std::unique_ptr<Group> group_;
  const int victim_;
  int received_ = 0;
};

// Ranks 0 and 1 move two units to ranks 2 and 3; of what rank 3 receives, message `victim` is
// damaged.
Outcome MoveWithDamage(MoveOptions* options, std::map<int, EngineState>* sources, int victim) {
  const ParamTable table = MakeTable({640, 320});
  options->source = MakeLayout({0, 1});
  options->destination = MakeLayout({2, 3});
  options->num_moments = 1;
  options->weights_version = 1;
  *sources = FilledStates(table, options->source, 1);
  Outcome outcome = MoveAll(table, *options, *sources, [&](int rank, std::unique_ptr<Group> group) {
    if (rank != 3) return group;
    return std::unique_ptr<Group>(std::make_unique<BitFlippingGroup>(std::move(group), victim));
  });
  for (const auto& [rank, state] : *sources) {
    ExpectSameState(state, FilledState(table, options->source, rank, 1));
  }
  return outcome;
}

TEST(MoveTest, Run_FlippedBit_IsDataLossOnEveryMemberAndTheSourceIsIntact) {
  for (const bool reads_memory : {false, true}) {
    SCOPED_TRACE(reads_memory);
    if (reads_memory && !CanReadOwnMemory()) continue;
    // Rank 3 receives layers.0 [320, 640), then layers.1 [160, 320): each as weights, moment,
    // digests, or as addresses, digests (of which the damage hits the second).
    MoveOptions options;
    options.reads_memory = reads_memory;
    std::map<int, EngineState> sources;
    const Outcome outcome = MoveWithDamage(&options, &sources, reads_memory ? 3 : 4);
    ASSERT_EQ(outcome.statuses.size(), 4u);
    for (const auto& [rank, status] : outcome.statuses) {
      EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << rank << ": " << status;
      EXPECT_EQ(ReasonOf(status), "DATA");
      EXPECT_THAT(std::string(status.message()),
                  HasSubstr("layers.1 elements 160 to 320 from rank 1 to rank 3: the optimizer "
                            "moment 1 that arrived"));
    }
    EXPECT_TRUE(outcome.states.empty());
  }
}

TEST(MoveTest, Run_MemoryThatCannotBeRead_EndsEveryMemberAndNamesTheRank) {
  if (!CanReadOwnMemory()) GTEST_SKIP() << "process_vm_readv is not allowed here";
  MoveOptions options;
  std::map<int, EngineState> sources;
  const Outcome outcome = MoveWithDamage(&options, &sources, 2);
  ASSERT_EQ(outcome.statuses.size(), 4u);
  for (const auto& [rank, status] : outcome.statuses) EXPECT_FALSE(status.ok()) << rank;
  const absl::Status status = outcome.statuses.at(3);
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal) << "rank 1 lives: " << status;
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("move layers.1 elements 160 to 320 from rank 1 to rank 3: the memory of "
                        "rank 1 (pid "));
  EXPECT_TRUE(outcome.states.empty());
}

TEST(MoveTest, Agree_MemberAtAnotherStep_IsAbortedOnEveryMember) {
  const ParamTable table = MakeTable({64});
  MoveOptions options;
  options.source = MakeLayout({0, 1});
  options.destination = MakeLayout({0, 1, 2});
  options.weights_version = 1;
  std::map<int, EngineState> sources = FilledStates(table, options.source, 0);
  sources[1].step = 3;
  std::atomic<int> refused{0};
  RunInGroup({0, 1, 2}, kTimeout, [&](int rank, std::unique_ptr<Group> group) {
    auto move =
        Move::Prepare(table, options, rank, sources.count(rank) > 0 ? &sources[rank] : nullptr);
    ASSERT_TRUE(move.ok()) << move.status();
    const absl::Status status = (*move)->Agree(std::move(group));
    EXPECT_EQ(status.code(), absl::StatusCode::kAborted) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("'step 3'"));
    EXPECT_THAT(std::string(status.message()), HasSubstr("'step 0'"));
    ++refused;
  });
  EXPECT_EQ(refused, 3);
}

// Rank 1 never runs: rank 0 would wait for its time limit.
TEST(MoveTest, Abort_FromAnotherThread_EndsRunWithItsReason) {
  const ParamTable table = MakeTable({64});
  MoveOptions options;
  options.source = MakeLayout({1});
  options.destination = MakeLayout({0});
  options.weights_version = 1;
  const std::map<int, EngineState> sources = FilledStates(table, options.source, 0);
  absl::Notification ended;
  RunInGroup({1, 0}, kTimeout, [&](int rank, std::unique_ptr<Group> group) {
    auto move = Move::Prepare(table, options, rank, rank == 1 ? &sources.at(1) : nullptr);
    ASSERT_TRUE(move.ok()) << move.status();
    ASSERT_TRUE((*move)->Agree(std::move(group)).ok());
    if (rank == 1) {
      ended.WaitForNotification();
      return;
    }
    absl::Status status;
    const absl::Time start = absl::Now();
    RunRanks({0, 1}, [&](int thread) {
      if (thread == 0) {
        status = (*move)->Run(nullptr).status();
      } else {
        (*move)->Abort(absl::CancelledError("the engine is deleted"));
      }
    });
    ended.Notify();
    EXPECT_EQ(status.code(), absl::StatusCode::kCancelled) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("the engine is deleted"));
    EXPECT_LT(absl::Now() - start, kTimeout / 2);
    EXPECT_FALSE((*move)->TakeState().has_value());
  });
}

TEST(MoveTest, TakeState_BeforeRun_GivesNothing) {
  const ParamTable table = MakeTable({64});
  MoveOptions options;
  options.source = options.destination = MakeLayout({0});
  const EngineState state = FilledState(table, options.source, 0, 0);
  auto move = Move::Prepare(table, options, 0, &state);
  ASSERT_TRUE(move.ok());
  EXPECT_FALSE((*move)->TakeState().has_value());
  EXPECT_EQ((*move)->Run(nullptr).status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST(MoveTest, Prepare_BadOptions_AreRefused) {
  const ParamTable table = MakeTable({64});
  MoveOptions good;
  good.source = MakeLayout({0});
  good.destination = MakeLayout({1});
  const EngineState state = FilledState(table, good.source, 0, 0);
  const auto refused = [&](const MoveOptions& options, int rank, const EngineState* source) {
    return Move::Prepare(table, options, rank, source).status().code() ==
           absl::StatusCode::kInvalidArgument;
  };
  MoveOptions no_staging = good;
  no_staging.staging_bytes = 0;
  MoveOptions more_moments = good;
  more_moments.num_moments = 2;
  MoveOptions with_master = good;
  with_master.has_master = true;
  MoveOptions other_layout = good;
  other_layout.source = MakeLayout({0, 1});
  EXPECT_TRUE(Move::Prepare(table, good, 0, &state).ok());
  EXPECT_TRUE(refused(no_staging, 0, &state));
  EXPECT_TRUE(refused(more_moments, 0, &state));
  EXPECT_TRUE(refused(with_master, 0, &state));
  EXPECT_TRUE(refused(other_layout, 0, &state));
  EXPECT_TRUE(refused(good, 0, nullptr));
  EXPECT_TRUE(refused(good, 1, &state));
  EXPECT_TRUE(refused(good, 2, nullptr));
}

}  // namespace
}  // namespace regroup
