// Trainers of bf16 and fp16 weights with an fp32 master copy.
#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/zeros.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/group/thread_ranks.h"
#include "engine/train/trainer.h"
#include "engine/train/two_layers.h"
#include "engine/zero/dtype.h"
#include "gtest/gtest.h"

namespace regroup {
namespace {

// bf16 weights: the fp32-master loop of plain torch in one process, whose gradients are those of
// the rounded weights.
TEST(Trainer, Bf16_TwentySteps_FollowAnFp32MasterLoop) {
  const TwoLayers model(DType::kBf16);
  const MemoryRows data(7);
  EngineSpec spec = Spec(OptimizerKind::kAdamW, 0);
  spec.optimizer.learning_rate = 1e-2;
  Reference reference(model, spec);
  std::vector<ReferenceStep> expected;
  for (int i = 0; i < 20; ++i) expected.push_back(reference.Step(data, 5));
  for (const std::vector<int>& ranks : {std::vector<int>{1}, {1, 2}, {2, 0, 1, 3, 4, 5}}) {
    RunTrainers(ranks, spec, model, [&](int rank, Trainer& trainer) {
      for (int i = 0; i < 20; ++i) {
        const absl::StatusOr<StepResult> result = trainer.Step(data, 5, 1);
        ASSERT_TRUE(result.ok()) << result.status();
        EXPECT_NEAR(result->loss, expected[i].loss, 1e-2 * expected[i].loss) << i;
        for (const UnitState& unit : trainer.state().units) {
          ASSERT_EQ(unit.weights.scalar_type(), at::kBFloat16);
          ASSERT_TRUE(unit.weights.equal(unit.master.to(at::kBFloat16)));
        }
      }
      const bool lead = rank == ranks.front();
      CollectingWriter writer;
      ASSERT_TRUE(trainer.GatherTo(lead ? &writer : nullptr).ok());
      for (const at::Tensor& value : writer.values) EXPECT_EQ(value.scalar_type(), at::kBFloat16);
    });
  }
}

// fp16: the fp32-master loop on the batches that were not skipped while the loss scale came down.
TEST(Trainer, Fp16_TwentySteps_FollowAnFp32MasterLoop) {
  const TwoLayers model(DType::kFp16);
  const MemoryRows data(7);
  const EngineSpec spec = Spec(OptimizerKind::kAdamW, 0.5);
  for (const std::vector<int>& ranks : {std::vector<int>{1}, {2, 0, 1, 3, 4, 5}}) {
    std::vector<StepResult> results;
    RunTrainers(ranks, spec, model, [&](int rank, Trainer& trainer) {
      double scale = 65536;
      for (int i = 0; i < 24; ++i) {
        const absl::StatusOr<StepResult> result = trainer.Step(data, 5, i % 2 + 1);
        ASSERT_TRUE(result.ok()) << result.status();
        if (result->skipped) scale /= 2;
        EXPECT_EQ(trainer.state().loss_scale->value, scale);
        for (const UnitState& unit : trainer.state().units) {
          ASSERT_TRUE(unit.weights.equal(unit.master.to(at::kHalf)));
        }
        if (rank == ranks.front()) results.push_back(*result);
      }
      EXPECT_GE(trainer.state().step, 16);
    });
    const TwoLayers wide;
    Reference reference(wide, spec);
    for (const StepResult& result : results) {
      if (result.skipped) {
        reference.Skip();
        continue;
      }
      const ReferenceStep expected = reference.Step(data, 5);
      EXPECT_NEAR(result.loss, expected.loss, 1e-2 * expected.loss) << result.data_position;
      EXPECT_NEAR(result.grad_norm, expected.norm, 1e-2 * expected.norm) << result.data_position;
    }
  }
}

TEST(Trainer, Fp16_Overflow_HalvesTheLossScaleDownToOne) {
  const TwoLayers model(DType::kFp16);
  MemoryRows data(4);
  data.SpoilRow(3);
  RunTrainers({0, 1}, Spec(OptimizerKind::kSgd, 0), model, [&](int, Trainer& trainer) {
    absl::StatusOr<StepResult> result;
    for (double scale = 65536; scale >= 1; scale /= 2) {
      EXPECT_EQ(trainer.state().loss_scale->value, scale);
      result = trainer.Step(data, 4, 1);
      ASSERT_TRUE(result.ok()) << result.status();
      EXPECT_TRUE(result->skipped);
    }
    EXPECT_NE(result->reason.find("; loss scale 1 -> 1"), std::string::npos) << result->reason;
    EXPECT_EQ(trainer.state().loss_scale->value, 1);
    EXPECT_EQ(trainer.state().step, 0);
  });
}

// One element of one rank's shard, the first of second.bias, has a gradient that leaves fp16 while
// the loss scale is above 256; all others stay small.
class OneLargeGradient : public TwoLayers {
 public:
  OneLargeGradient() : TwoLayers(DType::kFp16) {}
  at::Tensor LossSum(UnitRunner& runner, const Batch& batch) const override {
    const at::Tensor bias = runner.Run(
        1, at::zeros({1}), [](const at::Tensor&, absl::Span<const at::Tensor> parameters) {
          return parameters[1].narrow(0, 0, 1) * 1.0;  // the weights go again
        });
    return TwoLayers::LossSum(runner, batch) * 1e-3 + bias.to(at::kFloat).sum() * 2000.0;
  }
};

// The ranks whose own shards are fine skip as well, and all come down to the same loss scale.
TEST(Trainer, Fp16_OverflowInOneRanksShard_SkipsOnAllUntilTheScaleFits) {
  const OneLargeGradient model;
  const MemoryRows data(4);
  const EngineSpec spec = Spec(OptimizerKind::kSgd, 0);
  RunTrainers({3, 0, 2, 1}, spec, model, [&](int, Trainer& trainer) {
    std::vector<at::Tensor> before;
    for (const UnitState& unit : trainer.state().units) before.push_back(unit.master.clone());
    for (int scale = 65536; scale > 256; scale /= 2) {
      const absl::StatusOr<StepResult> result = trainer.Step(data, 4, 1);
      ASSERT_TRUE(result.ok()) << result.status();
      EXPECT_TRUE(result->skipped);
      EXPECT_EQ(result->reason,
                absl::StrCat("non-finite gradient in second, in the shard of rank 0; loss scale ",
                             scale, " -> ", scale / 2));
      EXPECT_EQ(trainer.state().loss_scale->value, scale / 2);
      for (size_t i = 0; i < before.size(); ++i) {
        EXPECT_TRUE(trainer.state().units[i].master.equal(before[i])) << i;
      }
    }
    const absl::StatusOr<StepResult> result = trainer.Step(data, 4, 1);
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_FALSE(result->skipped) << result->reason;
    EXPECT_EQ(result->step, 1);
    EXPECT_EQ(trainer.state().loss_scale->value, 256);
  });
}

TEST(Trainer, Fp16_TwoThousandGoodSteps_DoubleTheLossScale) {
  const TwoLayers model(DType::kFp16);
  const MemoryRows data(4);
  EngineSpec spec = Spec(OptimizerKind::kSgd, 0);
  spec.layout.ranks = {3};
  ASSERT_TRUE(CompleteLayout(&spec.layout).ok());
  RunInGroup({3}, absl::Seconds(20), [&](int rank, std::unique_ptr<Group> group) {
    EngineState state = MakeState(model.table(), spec.layout, rank, 0, /*has_master=*/true);
    state.loss_scale = LossScale{8, kGoodStepsBeforeGrowth - 2};
    auto trainer = Trainer::Make(spec, &model, std::move(state), std::move(group));
    ASSERT_TRUE(trainer.ok()) << trainer.status();
    for (const double expected : {8, 16, 16}) {
      const absl::StatusOr<StepResult> result = (*trainer)->Step(data, 4, 1);
      ASSERT_TRUE(result.ok() && !result->skipped);
      EXPECT_EQ((*trainer)->state().loss_scale->value, expected);
    }
    EXPECT_EQ((*trainer)->state().loss_scale->good_steps, 1);
  });
}

// Weights with more bits than bf16 holds: the master copy has them all.
TEST(Trainer, LoadWeights_WithAMasterCopy_FillsItInFull) {
  const TwoLayers model(DType::kBf16);
  Layout layout;
  layout.ranks = {3, 4};
  ASSERT_TRUE(CompleteLayout(&layout).ok());
  EngineState state = MakeState(model.table(), layout, 4, 0, /*has_master=*/true);
  FixedWeights weights(&model.table());
  ASSERT_TRUE(LoadWeights(model.table(), weights, &state, nullptr).ok());
  const at::Tensor whole = at::cat({FixedWeights::Whole(model.table().parameter(0)).reshape({-1}),
                                    FixedWeights::Whole(model.table().parameter(1))});
  const UnitState& unit = state.units[0];
  const at::Tensor mine = whole.slice(0, unit.interval.begin, unit.interval.end);
  EXPECT_FALSE(mine.equal(mine.to(at::kBFloat16).to(at::kFloat)));
  EXPECT_TRUE(unit.master.narrow(0, 0, mine.numel()).equal(mine));
  EXPECT_TRUE(unit.weights.narrow(0, 0, mine.numel()).equal(mine.to(at::kBFloat16)));
  EXPECT_EQ(OptimizerBytes(state), 2 * WeightsBytes(state));
}

}  // namespace
}  // namespace regroup
