#include "engine/zero/sharded_runner.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/sin.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/variable.h>

#include "absl/strings/str_cat.h"
#include "engine/group/comm_status.h"
#include "engine/group/thread_ranks.h"
#include "gtest/gtest.h"

namespace regroup {
namespace {

// Three linear units of one width: a pass uses the first one twice and the last one never.
constexpr int kWidth = 7;

ParamTable MakeTable() {
  ParamTable table;
  for (int i = 0; i < 3; ++i) {
    table.AddUnit("layer" + std::to_string(i));
    table.AddParameter("w" + std::to_string(i), {kWidth, kWidth});
    table.AddParameter("b" + std::to_string(i), {kWidth});
  }
  return table;
}

// Deterministic values without a generator.
at::Tensor Values(std::vector<int64_t> shape, double phase) {
  int64_t n = 1;
  for (const int64_t size : shape) n *= size;
  return (at::arange(n, at::kFloat) * 0.7 + phase).sin().reshape(shape) * 0.3;
}

std::vector<at::Tensor> InitialParameters(const ParamTable& table) {
  std::vector<at::Tensor> all;
  for (const Parameter& parameter : table.parameters()) {
    all.push_back(Values(parameter.shape, parameter.id));
  }
  return all;
}

at::Tensor Layer(const at::Tensor& x, absl::Span<const at::Tensor> p) {
  return at::relu(at::linear(x, p[0], p[1])) + x;
}

// layer 0, layer 1, layer 0 again; layer 2 is unused.
template <typename RunUnit>
at::Tensor Loss(const RunUnit& run, const at::Tensor& rows) {
  at::Tensor x = run(0, rows);
  x = run(1, x);
  x = run(0, x);
  return (x * x).sum();
}

// The gradient of all rows in one process with plain autograd, by parameter.
std::vector<at::Tensor> ReferenceGradients(const ParamTable& table, const at::Tensor& rows) {
  std::vector<at::Tensor> parameters = InitialParameters(table);
  for (at::Tensor& parameter : parameters) parameter.requires_grad_(true);
  const at::AutoGradMode grad(true);
  const at::Tensor loss = Loss(
      [&](int unit, const at::Tensor& x) {
        return Layer(x, {parameters[2 * unit], parameters[2 * unit + 1]});
      },
      rows);
  torch::autograd::backward({loss}, {});
  std::vector<at::Tensor> gradients;
  for (const at::Tensor& parameter : parameters) {
    gradients.push_back(parameter.grad().defined() ? parameter.grad()
                                                   : at::zeros(parameter.sizes()));
  }
  return gradients;
}

EngineState ShardedState(const ParamTable& table, const std::vector<int>& ranks, int rank) {
  Layout layout;
  layout.ranks = ranks;
  EXPECT_TRUE(CompleteLayout(&layout).ok());
  EngineState state = MakeState(table, layout, rank, 0);
  const std::vector<at::Tensor> values = InitialParameters(table);
  for (const Unit& unit : table.units()) {
    std::vector<at::Tensor> flat;
    for (const int id : unit.parameters) flat.push_back(values[id].reshape({-1}));
    const Interval held = state.units[unit.id].interval;
    state.units[unit.id]
        .weights.narrow(0, 0, held.size())
        .copy_(at::cat(flat).narrow(0, held.begin, held.size()));
  }
  return state;
}

at::Tensor RunLoss(ShardedRunner& runner, const at::Tensor& rows) {
  return Loss([&](int unit, const at::Tensor& x) { return runner.Run(unit, x, Layer); }, rows);
}

// Each of the runner's shards is its interval of the whole gradients, by parameter id.
void ExpectShards(ShardedRunner& runner, const ParamTable& table, const EngineState& state,
                  const std::vector<at::Tensor>& whole) {
  for (const Unit& unit : table.units()) {
    const Interval held = state.units[unit.id].interval;
    std::vector<at::Tensor> flat;
    for (const int id : unit.parameters) flat.push_back(whole[id].reshape({-1}));
    EXPECT_TRUE(runner.gradient_shard(unit.id)
                    .narrow(0, 0, held.size())
                    .allclose(at::cat(flat).narrow(0, held.begin, held.size()), 1e-5, 1e-6))
        << "unit " << unit.id;
  }
}

class ShardedRunnerRanks : public testing::TestWithParam<std::vector<int>> {};

TEST_P(ShardedRunnerRanks, GradientShards_EqualPlainAutograd_InEveryPass) {
  const std::vector<int> ranks = GetParam();
  const ParamTable table = MakeTable();
  const at::Tensor rows = Values({5, kWidth}, 11);
  const std::vector<at::Tensor> expected = ReferenceGradients(table, rows);
  RunInGroup(ranks, absl::Seconds(20), [&](int rank, std::unique_ptr<Group> group) {
    const EngineState state = ShardedState(table, ranks, rank);
    const int n = group->size();
    const int begin = group->index() * 5 / n;
    const int end = (group->index() + 1) * 5 / n;  // no row at all for some of six ranks
    ShardedRunner runner(&table, &state, {{kDataParallelGroup, group.get()}}, CheckLevel::kBasic);
    int64_t buffers = 0;
    for (int pass = 0; pass < 4; ++pass) {
      const absl::Status status = CatchStatus("pass", [&] {
        const at::AutoGradMode grad(true);
        runner.BeginPass("train", /*accumulate=*/false);
        runner.Backward(RunLoss(runner, rows.slice(0, begin, end)));
        return absl::OkStatus();
      });
      ASSERT_TRUE(status.ok()) << status;
      runner.EndPass();
      SCOPED_TRACE(absl::StrCat("pass ", pass));
      ExpectShards(runner, table, state, expected);
      if (pass == 1) buffers = runner.buffer_bytes();
    }
    EXPECT_EQ(runner.buffer_bytes(), buffers) << "the steady state takes no new buffer";
    const TraceSnapshot trace = runner.traces()[0];
    EXPECT_EQ(trace.state, TraceState::kAgreed);
    EXPECT_EQ(trace.records, 1);
    EXPECT_EQ(trace.reductions, 4 * 3) << "each unit once a pass, used or not";
    EXPECT_GT(trace.prefetches, 0);
    // A pass uses 0, 1, 0 forward and 0, 1, 0 backward; following the trace, 0 stays from forward
    // to backward.
    EXPECT_EQ(trace.gathers, 6 + 3 * 5);
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, ShardedRunnerRanks,
                         testing::Values(std::vector<int>{2}, std::vector<int>{1, 2},
                                         std::vector<int>{2, 0, 3},
                                         std::vector<int>{0, 1, 2, 3, 4, 5}));

// Two micro-batches, the first of which leaves most ranks without a row, then one whole batch.
TEST_P(ShardedRunnerRanks, Accumulate_AddsTheShardsOfItsPasses_AndKeepsTheOtherTrace) {
  const std::vector<int> ranks = GetParam();
  const ParamTable table = MakeTable();
  const at::Tensor rows = Values({5, kWidth}, 11);
  const std::vector<at::Tensor> expected = ReferenceGradients(table, rows);
  RunInGroup(ranks, absl::Seconds(20), [&](int rank, std::unique_ptr<Group> group) {
    const EngineState state = ShardedState(table, ranks, rank);
    ShardedRunner runner(&table, &state, {{kDataParallelGroup, group.get()}}, CheckLevel::kBasic);
    const int n = group->size();
    int64_t buffers = 0;
    for (int step = 0; step < 4; ++step) {
      const std::vector<int> cuts =
          step % 2 == 0 ? std::vector<int>{0, 5} : std::vector<int>{0, 1, 5};
      for (size_t part = 0; part + 1 < cuts.size(); ++part) {
        const int count = cuts[part + 1] - cuts[part];
        const int begin = cuts[part] + group->index() * count / n;
        const int end = cuts[part] + (group->index() + 1) * count / n;
        const absl::Status status = CatchStatus("pass", [&] {
          const at::AutoGradMode grad(true);
          runner.BeginPass(cuts.size() == 2 ? "train" : "two", part > 0);
          runner.Backward(RunLoss(runner, rows.slice(0, begin, end)));
          return absl::OkStatus();
        });
        ASSERT_TRUE(status.ok()) << status;
        runner.EndPass();
      }
      SCOPED_TRACE(absl::StrCat("step ", step));
      ExpectShards(runner, table, state, expected);
      if (step == 1) buffers = runner.buffer_bytes();
    }
    EXPECT_EQ(runner.buffer_bytes(), buffers) << "the steady state takes no new buffer";
    const std::vector<TraceSnapshot> traces = runner.traces();
    ASSERT_EQ(traces.size(), 2u);
    EXPECT_EQ(traces[0].kind, "train");
    EXPECT_EQ(traces[1].kind, "two");
    for (const TraceSnapshot& trace : traces) EXPECT_EQ(trace.records, 1) << trace.kind;
    EXPECT_EQ(traces[0].reductions, 2 * 3);
    EXPECT_EQ(traces[1].reductions, 4 * 3);
  });
}

TEST(ShardedRunner, DifferentOrderWhileRecording_IsAnErrorOnBothSides) {
  const ParamTable table = MakeTable();
  RunInGroup({3, 5}, absl::Seconds(20), [&](int rank, std::unique_ptr<Group> group) {
    const EngineState state = ShardedState(table, {3, 5}, rank);
    ShardedRunner runner(&table, &state, {{kDataParallelGroup, group.get()}}, CheckLevel::kBasic);
    const absl::Status status = CatchStatus("pass", [&] {
      runner.BeginPass("train", /*accumulate=*/false);
      runner.Run(0, Values({1, kWidth}, 0), Layer);
      runner.Run(rank == 3 ? 1 : 2, Values({1, kWidth}, 0), Layer);
      return absl::OkStatus();
    });
    EXPECT_EQ(status.code(), absl::StatusCode::kAborted) << status;
    EXPECT_EQ(ReasonOf(status), "RANKS_DISAGREE");
    EXPECT_NE(status.message().find("ranks 3 have 'unit 1"), std::string::npos) << status;
    EXPECT_NE(status.message().find("ranks 5 have 'unit 2"), std::string::npos) << status;
  });
}

class ShardedRunnerRecompute : public testing::TestWithParam<bool> {};

TEST_P(ShardedRunnerRecompute, PeerLeavesInBackward_EndsWithItsError) {
  const ParamTable table = MakeTable();
  RunInGroup({0, 1}, absl::Seconds(20), [&](int rank, std::unique_ptr<Group> group) {
    const EngineState state = ShardedState(table, {0, 1}, rank);
    ShardedRunner runner(&table, &state, {{kDataParallelGroup, group.get()}}, CheckLevel::kBasic,
                         GetParam());
    const absl::Status status = CatchStatus("pass", [&] {
      const at::AutoGradMode grad(true);
      runner.BeginPass("train", /*accumulate=*/false);
      const at::Tensor loss = RunLoss(runner, Values({2, kWidth}, 0));
      if (rank == 0) runner.Backward(loss);
      return absl::OkStatus();
    });
    if (rank == 0) {
      EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
      EXPECT_NE(status.message().find("rank 1"), std::string::npos) << status;
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Both, ShardedRunnerRecompute, testing::Bool());

}  // namespace
}  // namespace regroup
