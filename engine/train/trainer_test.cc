#include "engine/train/trainer.h"

#include <ATen/TensorOperators.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "engine/train/two_layers.h"
#include "gtest/gtest.h"

namespace regroup {
namespace {

struct Case {
  std::vector<int> ranks;
  OptimizerKind optimizer;
  double clip;
  int64_t batch;
  CheckLevel checks = CheckLevel::kBasic;
};

class TrainerParity : public testing::TestWithParam<Case> {};

TEST_P(TrainerParity, ThreeSteps_EqualOneProcess) {
  const Case& c = GetParam();
  const TwoLayers model;
  const MemoryRows data(7);  // no multiple of the batch: rows wrap around
  EngineSpec spec = Spec(c.optimizer, c.clip);
  spec.checks = c.checks;
  Reference reference(model, spec);
  std::vector<ReferenceStep> expected;
  for (int i = 0; i < 3; ++i) expected.push_back(reference.Step(data, c.batch));

  RunTrainers(c.ranks, spec, model, [&](int rank, Trainer& trainer) {
    for (int i = 0; i < 3; ++i) {
      const absl::StatusOr<StepResult> result = trainer.Step(data, c.batch, 1);
      ASSERT_TRUE(result.ok()) << result.status();
      EXPECT_EQ(result->step, i + 1);
      EXPECT_EQ(result->data_position, i + 1);
      EXPECT_EQ(result->weights_version, i + 2);
      EXPECT_EQ(result->tokens, c.batch * kOut);
      EXPECT_FALSE(result->skipped);
      EXPECT_NEAR(result->loss, expected[i].loss, 1e-5 * expected[i].loss);
      EXPECT_NEAR(result->grad_norm, expected[i].norm, 1e-5 * expected[i].norm);
    }
    const bool lead = rank == c.ranks.front();
    CollectingWriter writer;
    ASSERT_TRUE(trainer.GatherTo(lead ? &writer : nullptr).ok());
    for (size_t i = 0; lead && i < reference.parameters.size(); ++i) {
      EXPECT_TRUE(writer.values[i].allclose(reference.parameters[i], 0, 5e-6)) << i;
    }
  });
}

INSTANTIATE_TEST_SUITE_P(
    Layouts, TrainerParity,
    testing::Values(Case{{2}, OptimizerKind::kSgd, 0, 4}, Case{{1, 2}, OptimizerKind::kSgd, 0, 4},
                    Case{{1, 2}, OptimizerKind::kAdamW, 0, 5},
                    Case{{2, 0, 1}, OptimizerKind::kAdamW, 0.05, 5},
                    Case{{0, 1, 2}, OptimizerKind::kSgd, 0.05, 1},  // fewer rows than ranks
                    Case{{0, 1, 2, 3}, OptimizerKind::kAdamW, 0, 6},
                    // Three of the five have no element of the second unit, one none at all.
                    Case{{4, 0, 3, 1, 2}, OptimizerKind::kSgd, 0.05, 6},
                    Case{{0, 2, 1}, OptimizerKind::kAdam, 0.05, 5},
                    Case{{1, 0, 2}, OptimizerKind::kAdamW, 0.05, 5, CheckLevel::kFull},
                    Case{{1, 0, 2}, OptimizerKind::kAdamW, 0.05, 5, CheckLevel::kOff}));

struct Accumulation {
  std::vector<int> ranks;
  int64_t parts;
  int64_t batch = 5;
};

class TrainerAccumulation : public testing::TestWithParam<Accumulation> {};

// The global batch decides, however it is cut: parts of unequal size, parts with fewer rows than
// ranks.
TEST_P(TrainerAccumulation, ThreeSteps_EqualOneProcess) {
  const Accumulation& c = GetParam();
  const TwoLayers model;
  const MemoryRows data(7);
  const EngineSpec spec = Spec(OptimizerKind::kSgd, 0.05);
  Reference reference(model, spec);
  std::vector<ReferenceStep> expected;
  for (int i = 0; i < 4; ++i) expected.push_back(reference.Step(data, c.batch));
  RunTrainers(c.ranks, spec, model, [&](int rank, Trainer& trainer) {
    for (int i = 0; i < 4; ++i) {
      // The last step is whole: its trace is there beside the other one.
      const absl::StatusOr<StepResult> result = trainer.Step(data, c.batch, i < 3 ? c.parts : 1);
      ASSERT_TRUE(result.ok()) << result.status();
      EXPECT_EQ(result->tokens, c.batch * kOut);
      EXPECT_EQ(result->data_position, i + 1);
      EXPECT_NEAR(result->loss, expected[i].loss, 1e-5 * expected[i].loss);
      EXPECT_NEAR(result->grad_norm, expected[i].norm, 1e-5 * expected[i].norm);
    }
    const std::vector<TraceSnapshot> traces = trainer.traces();
    ASSERT_EQ(traces.size(), 2u);
    EXPECT_EQ(traces[0].kind, "train");
    EXPECT_EQ(traces[0].reductions, 2);
    EXPECT_EQ(traces[1].kind, "train accumulate=" + std::to_string(c.parts));
    EXPECT_EQ(traces[1].reductions, 3 * c.parts * 2);
    for (const TraceSnapshot& trace : traces) EXPECT_EQ(trace.records, 1);
    const bool lead = rank == c.ranks.front();
    CollectingWriter writer;
    ASSERT_TRUE(trainer.GatherTo(lead ? &writer : nullptr).ok());
    for (size_t i = 0; lead && i < reference.parameters.size(); ++i) {
      EXPECT_TRUE(writer.values[i].allclose(reference.parameters[i], 0, 5e-6)) << i;
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Cuts, TrainerAccumulation,
                         testing::Values(Accumulation{{2}, 2}, Accumulation{{0}, 5},
                                         Accumulation{{1, 2}, 3}, Accumulation{{1, 0}, 5},
                                         Accumulation{{0, 1, 2}, 2}, Accumulation{{2, 0, 1}, 4}));

TEST(Trainer, NonFiniteGradientInOneMicroBatch_SkipsTheStep) {
  const TwoLayers model;
  MemoryRows data(4);
  data.SpoilRow(0);
  RunTrainers({0, 1}, Spec(OptimizerKind::kSgd, 0), model, [&](int, Trainer& trainer) {
    const at::Tensor before = trainer.state().units[0].weights.clone();
    const absl::StatusOr<StepResult> result = trainer.Step(data, 4, 4);
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_TRUE(result->skipped);
    EXPECT_TRUE(trainer.state().units[0].weights.equal(before));
  });
}

TEST(Trainer, NonFiniteGradientOnOneRank_SkipsOnAllAndNamesIt) {
  const TwoLayers model;
  MemoryRows data(4);
  data.SpoilRow(3);  // second rank of the first batch
  RunTrainers({0, 1}, Spec(OptimizerKind::kSgd, 0), model, [&](int rank, Trainer& trainer) {
    const at::Tensor before = trainer.state().units[0].weights.clone();
    const absl::StatusOr<StepResult> result = trainer.Step(data, 4, 1);
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_TRUE(result->skipped);
    EXPECT_NE(result->reason.find("non-finite gradient in "), std::string::npos) << result->reason;
    EXPECT_EQ(result->step, 0);
    EXPECT_EQ(result->data_position, 1) << "a skipped batch counts as drawn";
    EXPECT_EQ(result->weights_version, 1);
    EXPECT_TRUE(trainer.state().units[0].weights.equal(before));
  });
}

TEST(Trainer, NoCountedTarget_IsLossZeroAndSkipped) {
  const TwoLayers model;
  MemoryRows data(4);
  data.set_counted(false);
  RunTrainers({0, 1}, Spec(OptimizerKind::kSgd, 0), model, [&](int, Trainer& trainer) {
    const absl::StatusOr<StepResult> result = trainer.Step(data, 4, 1);
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_TRUE(result->skipped);
    EXPECT_EQ(result->loss, 0);
    EXPECT_EQ(result->data_position, 1);
  });
}

// The same rows, in which `extra` targets more (or fewer) count.
class OtherCount : public MemoryRows {
 public:
  explicit OtherCount(int64_t extra) : MemoryRows(4), extra_(extra) {}
  int64_t CountTargets(absl::Span<const int64_t> rows) const override {
    return MemoryRows::CountTargets(rows) + extra_;
  }

 private:
  const int64_t extra_;
};

// No rank divides by a count of its own, or skips while others wait for it.
TEST(Trainer, RanksThatCountOtherTargets_AreAbortedAndNothingChanges) {
  const TwoLayers model;
  const MemoryRows whole(4);
  for (const int64_t extra : {1, -4 * kOut}) {
    const OtherCount other(extra);
    RunTrainers({0, 1}, Spec(OptimizerKind::kSgd, 0), model, [&](int rank, Trainer& trainer) {
      const at::Tensor before = trainer.state().units[0].weights.clone();
      const MemoryRows& mine = rank == 0 ? whole : other;
      const absl::Status status = trainer.Step(mine, 4, 1).status();
      EXPECT_EQ(status.code(), absl::StatusCode::kAborted) << status;
      for (const int64_t count : {int64_t{4 * kOut}, 4 * kOut + extra}) {
        EXPECT_NE(status.message().find(absl::StrCat("'counted targets ", count, " of the batch'")),
                  std::string::npos)
            << status;
      }
      EXPECT_TRUE(trainer.group().failure().ok());
      EXPECT_EQ(trainer.state().data_position, 0);
      EXPECT_TRUE(trainer.state().units[0].weights.equal(before));
      EXPECT_TRUE(trainer.Step(whole, 4, 1).ok()) << "the trainer goes on";
    });
  }
}

TEST(Trainer, DataOfOneRankBroken_FailsTheStepOnAllAndChangesNothing) {
  const TwoLayers model;
  RunTrainers({0, 1}, Spec(OptimizerKind::kSgd, 0), model, [&](int rank, Trainer& trainer) {
    MemoryRows data(4);
    data.set_broken(rank == 1);
    const absl::Status status = trainer.Step(data, 4, 1).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
    EXPECT_NE(status.message().find("rank 1 failed"), std::string::npos) << status;
    EXPECT_TRUE(trainer.group().failure().ok());
    EXPECT_EQ(trainer.state().data_position, 0);
    data.set_broken(false);
    EXPECT_TRUE(trainer.Step(data, 4, 1).ok()) << "the trainer goes on";
  });
}

TEST(Trainer, LoadWeights_ToldToStop_EndsAfterThatParameter) {
  const TwoLayers model;
  Layout layout;
  layout.ranks = {0};
  ASSERT_TRUE(CompleteLayout(&layout).ok());
  EngineState state = MakeState(model.table(), layout, 0, 0);
  FixedWeights weights(&model.table());
  std::vector<int64_t> progress;
  const absl::Status status = LoadWeights(model.table(), weights, &state, [&](int64_t bytes) {
    progress.push_back(bytes);
    return progress.size() == 3 ? absl::CancelledError("enough") : absl::OkStatus();
  });
  EXPECT_EQ(status.message(), "enough");
  EXPECT_EQ(progress, (std::vector<int64_t>{0, 4 * kHidden * kIn, 4 * kHidden * (kIn + 1)}));
}

TEST(Trainer, SameEngineTwice_SameBits) {
  const TwoLayers model;
  const MemoryRows data(7);
  absl::Mutex mutex;
  std::vector<at::Tensor> kept[2];
  for (std::vector<at::Tensor>& run : kept) {
    run.resize(3);
    RunTrainers({0, 1, 2}, Spec(OptimizerKind::kAdamW, 0.1), model,
                [&](int rank, Trainer& trainer) {
                  for (int i = 0; i < 4; ++i) ASSERT_TRUE(trainer.Step(data, 5, 1).ok());
                  absl::MutexLock lock(&mutex);
                  run[rank] = trainer.state().units[0].weights.clone();
                });
  }
  for (int rank = 0; rank < 3; ++rank) EXPECT_TRUE(kept[0][rank].equal(kept[1][rank]));
}

TEST(Trainer, WriterFails_EveryMemberReturnsItsError) {
  const TwoLayers model;
  RunTrainers({4, 2}, Spec(OptimizerKind::kSgd, 0), model, [&](int rank, Trainer& trainer) {
    CollectingWriter writer;
    writer.failure = absl::ResourceExhaustedError("disk full");
    const absl::Status status = trainer.GatherTo(rank == 4 ? &writer : nullptr);
    EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
    EXPECT_NE(status.message().find("rank 4 failed: disk full"), std::string::npos) << status;
    CollectingWriter second;
    EXPECT_TRUE(trainer.GatherTo(rank == 4 ? &second : nullptr).ok()) << "still usable";
  });
}

TEST(Trainer, Memory_IsShardedStatePlusReusedBuffers) {
  const TwoLayers model;
  const MemoryRows data(8);
  RunTrainers({0, 1}, Spec(OptimizerKind::kAdamW, 0), model, [&](int, Trainer& trainer) {
    ASSERT_TRUE(trainer.Step(data, 4, 1).ok());
    ASSERT_TRUE(trainer.Step(data, 4, 1).ok());
    const MemoryUse after = trainer.memory();
    EXPECT_EQ(after.weights_bytes, WeightsBytes(trainer.state()));
    EXPECT_EQ(after.optimizer_bytes, 2 * after.weights_bytes);
    ASSERT_TRUE(trainer.Step(data, 4, 1).ok());
    EXPECT_EQ(trainer.memory().buffers_bytes, after.buffers_bytes);
    EXPECT_EQ(after.peak_bytes, after.weights_bytes + after.optimizer_bytes + after.buffers_bytes);
  });
}

}  // namespace
}  // namespace regroup
