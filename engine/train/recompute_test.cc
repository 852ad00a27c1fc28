// Recomputation changes what is kept, and no bit of what comes out.
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>

#include <algorithm>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "engine/group/thread_ranks.h"
#include "engine/model/registry.h"
#include "engine/model/test_models.h"
#include "engine/train/trainer.h"
#include "engine/zero/dtype.h"
#include "gtest/gtest.h"

namespace regroup {
namespace {

// torch's allocator for tensors, with a count of the bytes that are held.
class CountingAllocator : public c10::Allocator {
 public:
  static CountingAllocator& Get() {
    static CountingAllocator& allocator = *new CountingAllocator;
    return allocator;
  }

  c10::DataPtr allocate(size_t bytes) override {
    void* memory = base_->raw_allocate(bytes);
    if (memory != nullptr) {
      absl::MutexLock lock(&mutex_);
      sizes_[memory] = static_cast<int64_t>(bytes);
      held_ += static_cast<int64_t>(bytes);
      most_ = std::max(most_, held_);
    }
    return {memory, memory, &Free, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &Free; }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }

  // The most bytes that were held while `body` ran, beside what was held before it.
  int64_t PeakOf(const std::function<void()>& body) {
    int64_t before = 0;
    {
      absl::MutexLock lock(&mutex_);
      most_ = before = held_;
    }
    body();
    absl::MutexLock lock(&mutex_);
    return most_ - before;
  }

 private:
  CountingAllocator() : base_(c10::GetCPUAllocator()) { c10::SetCPUAllocator(this, 100); }

  static void Free(void* memory) {
    CountingAllocator& counting = Get();
    if (memory != nullptr) {
      absl::MutexLock lock(&counting.mutex_);
      const auto block = counting.sizes_.find(memory);
      if (block != counting.sizes_.end()) {
        counting.held_ -= block->second;
        counting.sizes_.erase(block);
      }
    }
    counting.base_->raw_deallocate(memory);
  }

  c10::Allocator* const base_;
  absl::Mutex mutex_;
  std::map<void*, int64_t> sizes_;
  int64_t held_ = 0;
  int64_t most_ = 0;
};

constexpr int64_t kSeq = 24;

// Rows of arithmetic on their numbers.
class CountedTokens : public Dataset {
 public:
  int64_t rows() const override { return 11; }
  absl::Status Check(int64_t, int64_t) const override { return absl::OkStatus(); }
  int64_t CountTargets(absl::Span<const int64_t> rows) const override {
    return static_cast<int64_t>(rows.size()) * kSeq;
  }
  Batch Load(absl::Span<const int64_t> rows) const override {
    const auto count = static_cast<int64_t>(rows.size());
    Batch batch{at::empty({count, kSeq}, at::kLong), at::empty({count, kSeq}, at::kLong)};
    for (int64_t i = 0; i < count * kSeq; ++i) {
      batch.inputs.data_ptr<int64_t>()[i] = Token(rows[i / kSeq], i % kSeq);
      batch.targets.data_ptr<int64_t>()[i] = Token(rows[i / kSeq], i % kSeq + 1);
    }
    return batch;
  }

 private:
  static int64_t Token(int64_t row, int64_t position) {
    return (row * 37 + position * position * 5 + position) % 257;
  }
};

struct Case {
  bool tied;
  DType dtype;
  std::vector<int> ranks;
  int64_t accumulate = 1;
};

ModelDefinition Define(const Case& c, const std::string& layers) {
  const std::string config = SmallLlamaConfig(
      {{"tie_word_embeddings", c.tied ? "true" : "false"}, {"num_hidden_layers", layers}});
  return *DefineModel(*ParseConfigFile("config.json", config), c.dtype);
}

class SmallSource : public WeightSource {
 public:
  explicit SmallSource(const ParamTable& table) : weights_(SmallWeights(table, 3)) {}
  absl::StatusOr<at::Tensor> Read(int id, int64_t begin, int64_t end, DType dtype) override {
    return weights_[id].second.reshape({-1}).slice(0, begin, end).to(ToScalarType(dtype));
  }
  std::vector<std::string> ContentTerms() const override { return {}; }

 private:
  NamedTensors weights_;
};

struct Outcome {
  std::vector<StepResult> steps;      // of the lead
  std::map<int, EngineState> states;  // by rank
  std::vector<TraceSnapshot> traces;  // of the lead
  int64_t peak = 0;                   // of a step, of all ranks together
};

Outcome Train(const Case& c, const Model& model, bool recompute, int64_t batch) {
  EngineSpec spec;
  spec.name = "tested";
  spec.optimizer.learning_rate = 1e-3;
  spec.recompute = recompute;
  spec.layout.ranks = c.ranks;
  EXPECT_TRUE(CompleteLayout(&spec.layout).ok());
  const CountedTokens data;
  Outcome outcome;
  absl::Mutex mutex;
  RunInGroup(c.ranks, absl::Seconds(60), [&](int rank, std::unique_ptr<Group> group) {
    SmallSource weights(model.table());
    EngineState state = MakeState(model.table(), spec.layout, rank, spec.optimizer.num_moments(),
                                  NeedsMaster(c.dtype));
    ASSERT_TRUE(LoadWeights(model.table(), weights, &state, nullptr).ok());
    auto trainer = Trainer::Make(spec, &model, std::move(state), std::move(group));
    ASSERT_TRUE(trainer.ok()) << trainer.status();
    for (int i = 0; i < 3; ++i) {
      absl::StatusOr<StepResult> step;
      const int64_t peak = CountingAllocator::Get().PeakOf(
          [&] { step = (*trainer)->Step(data, batch, c.accumulate); });
      ASSERT_TRUE(step.ok()) << step.status();
      absl::MutexLock lock(&mutex);
      if (rank == c.ranks[0]) {
        outcome.steps.push_back(*step);
        outcome.peak = peak;  // of the last, when all buffers are there
      }
    }
    absl::MutexLock lock(&mutex);
    outcome.states[rank] = (*trainer)->state();
    if (rank == c.ranks[0]) outcome.traces = (*trainer)->traces();
  });
  return outcome;
}

class RecomputeTest : public testing::TestWithParam<Case> {};

TEST_P(RecomputeTest, ThreeSteps_AreBitwiseThoseWithout) {
  const Case& c = GetParam();
  const ModelDefinition definition = Define(c, "2");
  const Outcome plain = Train(c, *definition.model, /*recompute=*/false, 5);
  const Outcome again = Train(c, *definition.model, /*recompute=*/true, 5);
  ASSERT_EQ(plain.steps.size(), 3u);
  ASSERT_EQ(again.steps.size(), 3u);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(again.steps[i].loss, plain.steps[i].loss);
    EXPECT_EQ(again.steps[i].grad_norm, plain.steps[i].grad_norm);
  }
  for (const auto& [rank, state] : plain.states) {
    for (size_t unit = 0; unit < state.units.size(); ++unit) {
      const UnitState& other = again.states.at(rank).units[unit];
      EXPECT_TRUE(state.units[unit].weights.equal(other.weights)) << rank << " " << unit;
      EXPECT_TRUE(state.units[unit].moments[1].equal(other.moments[1])) << rank << " " << unit;
    }
  }
  // Nothing is gathered or reduced more often, or in another order.
  ASSERT_EQ(again.traces.size(), plain.traces.size());
  for (size_t i = 0; i < plain.traces.size(); ++i) {
    EXPECT_EQ(again.traces[i].entries, plain.traces[i].entries);
    EXPECT_EQ(again.traces[i].records, plain.traces[i].records);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Models, RecomputeTest,
    testing::Values(Case{false, DType::kFp32, {0}}, Case{true, DType::kFp32, {1, 2}},
                    Case{false, DType::kFp32, {2, 0, 1}, 3}, Case{true, DType::kBf16, {0}},
                    Case{true, DType::kBf16, {0, 1}, 2}, Case{false, DType::kBf16, {1, 0, 2}}));

// What backward needs of a layer beside its input is there for one layer at a time.
TEST(Recompute, Memory_OfEachFurtherLayer_IsItsInput) {
  CountingAllocator::Get();
  const Case c{true, DType::kFp32, {0}};
  constexpr int64_t kBatch = 8;
  int64_t peaks[2][2];
  for (const int deep : {0, 1}) {
    const ModelDefinition definition = Define(c, deep == 1 ? "12" : "4");
    for (const int recompute : {0, 1}) {
      peaks[recompute][deep] = Train(c, *definition.model, recompute == 1, kBatch).peak;
    }
  }
  const int64_t input = kBatch * kSeq * 64 * 4;
  const int64_t of_layer = (peaks[1][1] - peaks[1][0]) / 8;
  EXPECT_LE(of_layer, 2 * input);
  EXPECT_GE((peaks[0][1] - peaks[0][0]) / 8, 10 * input);
  EXPECT_LT(peaks[1][1], peaks[0][1] / 3);
}

}  // namespace
}  // namespace regroup
