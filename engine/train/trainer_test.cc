#include "engine/train/trainer.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/variable.h>

#include <cmath>
#include <limits>

#include "absl/synchronization/mutex.h"
#include "engine/group/comm_status.h"
#include "engine/group/thread_ranks.h"
#include "engine/zero/dtype.h"
#include "gtest/gtest.h"

namespace regroup {
namespace {

constexpr int kIn = 6;
constexpr int kHidden = 9;
constexpr int kOut = 3;

at::Tensor Values(std::vector<int64_t> shape, double phase) {
  int64_t n = 1;
  for (const int64_t size : shape) n *= size;
  return (at::arange(n, at::kFloat) * 0.9 + phase).sin().reshape(shape);
}

at::Tensor FirstLayer(const at::Tensor& x, absl::Span<const at::Tensor> p) {
  return at::relu(at::linear(x, p[0], p[1]));
}
at::Tensor SecondLayer(const at::Tensor& x, absl::Span<const at::Tensor> p) {
  return at::linear(x, p[0], p[1]);
}

// Two linear layers with ReLU between, squared error.
class TwoLayers : public Model {
 public:
  explicit TwoLayers(DType dtype = DType::kFp32) : table_(dtype) {
    table_.AddUnit("first");
    table_.AddParameter("first.weight", {kHidden, kIn});
    table_.AddParameter("first.bias", {kHidden});
    table_.AddUnit("second");
    table_.AddParameter("second.weight", {kOut, kHidden});
    table_.AddParameter("second.bias", {kOut});
  }
  const ParamTable& table() const override { return table_; }
  const ModelLimits& limits() const override { return limits_; }
  at::Tensor LossSum(UnitRunner& runner, const Batch& batch) const override {
    const at::Tensor x = batch.inputs.to(ToScalarType(table_.dtype()));
    const at::Tensor y = runner.Run(1, runner.Run(0, x, FirstLayer), SecondLayer);
    return (y.to(at::kFloat) - batch.targets).square().sum();
  }
  void Decode(UnitRunner&, absl::Span<const DecodeRow>, const LogitsSink&) const override {}
  KvCache MakeCache(int64_t) const override { return {}; }
  int64_t CacheBytes(int64_t) const override { return 0; }
  int64_t ActivationBytes(int64_t, int64_t) const override { return 0; }
  std::string Signature() const override { return "two layers"; }

 private:
  ParamTable table_;
  ModelLimits limits_;
};

// Rows in memory. `bad_row` has an infinite target; uncounted() makes every target uncounted.
class MemoryRows : public Dataset {
 public:
  explicit MemoryRows(int64_t rows) : x_(Values({rows, kIn}, 1)), y_(Values({rows, kOut}, 2)) {}
  int64_t rows() const override { return x_.size(0); }
  absl::Status Check(int64_t, int64_t) const override { return absl::OkStatus(); }
  int64_t CountTargets(absl::Span<const int64_t> rows) const override {
    return counted_ ? static_cast<int64_t>(rows.size()) * kOut : 0;
  }
  Batch Load(absl::Span<const int64_t> rows) const override {
    if (broken_) throw StatusException(absl::DataLossError("the file changed"));
    std::vector<at::Tensor> x{at::zeros({0, kIn})}, y{at::zeros({0, kOut})};
    for (const int64_t row : rows) {
      x.push_back(x_.narrow(0, row, 1));
      y.push_back(y_.narrow(0, row, 1));
    }
    return {at::cat(x), at::cat(y)};
  }
  // What a file that changed under the trainer does.
  void set_broken(bool broken) { broken_ = broken; }
  void SpoilRow(int64_t row) { y_[row][0] = std::numeric_limits<float>::infinity(); }
  void set_counted(bool counted) { counted_ = counted; }
  const at::Tensor& x() const { return x_; }
  const at::Tensor& y() const { return y_; }

 private:
  at::Tensor x_, y_;
  bool counted_ = true;
  bool broken_ = false;
};

class FixedWeights : public WeightSource {
 public:
  explicit FixedWeights(const ParamTable* table) : table_(table) {}
  static at::Tensor Whole(const Parameter& parameter) {
    return Values(parameter.shape, 10.0 * parameter.id) * 0.4;
  }
  absl::StatusOr<at::Tensor> Read(int id, int64_t begin, int64_t end, DType dtype) override {
    return Whole(table_->parameter(id)).reshape({-1}).slice(0, begin, end).to(ToScalarType(dtype));
  }
  std::vector<std::string> ContentTerms() const override { return {"fixed"}; }

 private:
  const ParamTable* table_;
};

class CollectingWriter : public ExportWriter {
 public:
  absl::Status Write(int id, const at::Tensor& value) override {
    if (!failure.ok()) return failure;
    values.push_back(value.clone());
    return absl::OkStatus();
  }
  absl::StatusOr<int64_t> Commit() override { return 0; }
  std::vector<at::Tensor> values;
  absl::Status failure;
};

EngineSpec Spec(OptimizerKind kind, double clip) {
  EngineSpec spec;
  spec.name = "tested";
  spec.optimizer.kind = kind;
  spec.optimizer.learning_rate = kind == OptimizerKind::kSgd ? 0.1 : 1e-3;
  spec.optimizer.weight_decay = kind == OptimizerKind::kSgd ? 0 : 0.01;
  spec.clip_norm = clip;
  return spec;
}

// Makes a trainer on each of `ranks` and runs `body`.
void RunTrainers(const std::vector<int>& ranks, EngineSpec spec, const Model& model,
                 const std::function<void(int, Trainer&)>& body) {
  spec.layout.ranks = ranks;
  ASSERT_TRUE(CompleteLayout(&spec.layout).ok());
  RunInGroup(ranks, absl::Seconds(20), [&](int rank, std::unique_ptr<Group> group) {
    EngineState state = MakeState(model.table(), spec.layout, rank, spec.optimizer.num_moments(),
                                  NeedsMaster(model.table().dtype()));
    FixedWeights weights(&model.table());
    ASSERT_TRUE(LoadWeights(model.table(), weights, &state, nullptr).ok());
    absl::StatusOr<std::unique_ptr<Trainer>> trainer =
        Trainer::Make(spec, &model, std::move(state), std::move(group));
    ASSERT_TRUE(trainer.ok()) << trainer.status();
    body(rank, **trainer);
  });
}

struct ReferenceStep {
  double loss = 0;
  double norm = 0;
};

// The same steps in one process: plain autograd, update formulas written out.
class Reference {
 public:
  Reference(const TwoLayers& model, EngineSpec spec)
      : spec_(std::move(spec)), dtype_(ToScalarType(model.table().dtype())) {
    for (const Parameter& parameter : model.table().parameters()) {
      at::Tensor whole = FixedWeights::Whole(parameter);
      parameters.push_back(whole);
      m_.push_back(at::zeros(parameter.shape));
      v_.push_back(at::zeros(parameter.shape));
    }
  }

  void Skip() { ++position_; }

  ReferenceStep Step(const MemoryRows& data, int64_t batch) {
    const Batch rows = data.Load(BatchRows(position_++, batch, data.rows()));
    const at::NoGradGuard outside;
    std::vector<at::Tensor> leaves;  // the rounding of the parameters
    for (const at::Tensor& p : parameters) leaves.push_back(p.to(dtype_, false, /*copy=*/true));
    for (at::Tensor& leaf : leaves) leaf.requires_grad_(true);
    at::Tensor loss;
    {
      const at::AutoGradMode grad(true);
      const at::Tensor y = SecondLayer(FirstLayer(rows.inputs.to(dtype_), {leaves[0], leaves[1]}),
                                       {leaves[2], leaves[3]});
      loss = (y.to(at::kFloat) - rows.targets).square().mean();
      torch::autograd::backward({loss}, {});
    }
    ++step_;
    double squares = 0;
    std::vector<at::Tensor> gradients;
    for (const at::Tensor& leaf : leaves) gradients.push_back(leaf.grad().to(at::kFloat));
    for (const at::Tensor& g : gradients) squares += g.square().sum().item<double>();
    const ReferenceStep result{loss.item<double>(), std::sqrt(squares)};
    const double scale =
        spec_.clip_norm > 0 ? std::min(1.0, spec_.clip_norm / (result.norm + 1e-6)) : 1;
    const OptimizerSpec& o = spec_.optimizer;
    for (size_t i = 0; i < parameters.size(); ++i) {
      const at::Tensor gradient = gradients[i] * scale;
      if (o.kind == OptimizerKind::kSgd) {
        parameters[i].sub_(gradient * o.learning_rate);
      } else {
        at::Tensor g = gradient;
        if (o.kind == OptimizerKind::kAdam) g = g + parameters[i] * o.weight_decay;
        if (o.kind == OptimizerKind::kAdamW) {
          parameters[i].mul_(1 - o.learning_rate * o.weight_decay);
        }
        m_[i] = m_[i] * o.beta1 + g * (1 - o.beta1);
        v_[i] = v_[i] * o.beta2 + g * g * (1 - o.beta2);
        const at::Tensor denominator = (v_[i] / (1 - std::pow(o.beta2, step_))).sqrt() + o.eps;
        parameters[i].sub_(m_[i] / (1 - std::pow(o.beta1, step_)) / denominator * o.learning_rate);
      }
    }
    return result;
  }

  std::vector<at::Tensor> parameters;

 private:
  EngineSpec spec_;
  at::ScalarType dtype_;
  std::vector<at::Tensor> m_, v_;
  int64_t position_ = 0;
  int step_ = 0;
};

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
                    Case{{0, 2, 1}, OptimizerKind::kAdam, 0.05, 5},
                    Case{{1, 0, 2}, OptimizerKind::kAdamW, 0.05, 5, CheckLevel::kFull},
                    Case{{1, 0, 2}, OptimizerKind::kAdamW, 0.05, 5, CheckLevel::kOff}));

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
