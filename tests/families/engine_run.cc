#include "tests/families/engine_run.h"

#include <memory>
#include <optional>
#include <utility>

#include "engine/group/thread_ranks.h"
#include "engine/infer/inference_engine.h"
#include "gtest/gtest.h"

namespace regroup {
namespace {

// Takes what an export would write.
class Collector : public ExportWriter {
 public:
  Collector(const ParamTable& table, EngineState* state) : table_(table), state_(state) {}

  absl::Status Write(int id, const at::Tensor& value) override {
    const Parameter& parameter = table_.parameter(id);
    state_->units[parameter.unit]
        .weights.narrow(0, parameter.offset, parameter.numel)
        .copy_(value.reshape({-1}));
    return absl::OkStatus();
  }
  absl::StatusOr<int64_t> Commit() override { return 0; }

 private:
  const ParamTable& table_;
  EngineState* state_;
};

Layout WholeOn(int rank) {
  Layout layout;
  layout.ranks = {rank};
  layout.dp = 1;
  layout.placement = Placement::kReplicate;
  return layout;
}

}  // namespace

LoadedModel Load(const std::string& spec) {
  absl::StatusOr<LoadedModel> loaded = LoadModel(spec, std::nullopt, /*seed=*/0);
  EXPECT_TRUE(loaded.ok()) << loaded.status();
  return *std::move(loaded);
}

EngineSpec AdamWSpec(double learning_rate) {
  EngineSpec spec;
  spec.name = "tested";
  spec.optimizer.kind = OptimizerKind::kAdamW;
  spec.optimizer.learning_rate = learning_rate;
  spec.optimizer.weight_decay = 0.01;
  return spec;
}

void RunTrainers(const std::vector<int>& ranks, EngineSpec spec, const std::string& model,
                 const std::function<void(int, Trainer&)>& body) {
  spec.layout.ranks = ranks;
  spec.layout.dp = static_cast<int>(ranks.size());
  RunInGroup(ranks, absl::Seconds(60), [&](int rank, std::unique_ptr<Group> group) {
    LoadedModel loaded = Load(model);
    const ParamTable& table = loaded.model->table();
    EngineState state = MakeState(table, spec.layout, rank, spec.optimizer.num_moments());
    ASSERT_TRUE(LoadWeights(table, *loaded.weights, &state, nullptr).ok());
    auto trainer = Trainer::Make(spec, loaded.model.get(), std::move(state), std::move(group));
    ASSERT_TRUE(trainer.ok()) << trainer.status();
    body(rank, **trainer);
    EXPECT_TRUE((*trainer)->group().Barrier("the end").ok());
  });
}

EngineState GatheredState(Trainer& trainer, const ParamTable& table, int rank) {
  const bool lead = trainer.group().index() == 0;
  EngineState state;
  if (lead) state = MakeState(table, WholeOn(rank), rank, 0);
  Collector collector(table, &state);
  const absl::Status gathered = trainer.GatherTo(lead ? &collector : nullptr);
  EXPECT_TRUE(gathered.ok()) << gathered;
  return state;
}

EngineState InitialState(LoadedModel& model) {
  EngineState state = MakeState(model.model->table(), WholeOn(0), 0, 0);
  const absl::Status loaded = LoadWeights(model.model->table(), *model.weights, &state, nullptr);
  EXPECT_TRUE(loaded.ok()) << loaded;
  return state;
}

std::vector<int64_t> Generate(const Model& model, EngineState state,
                              const std::vector<int64_t>& prompt, int64_t max_tokens) {
  auto engine = InferenceEngine::Make(&model, std::move(state));
  EXPECT_TRUE(engine.ok()) << engine.status();
  SamplingOptions options;
  options.max_tokens = max_tokens;
  EXPECT_TRUE((*engine)->StartGeneration({{0, prompt}}, options).ok());
  std::vector<int64_t> tokens;
  while ((*engine)->unfinished() > 0) {
    const auto step = (*engine)->DecodeToken(nullptr);
    EXPECT_TRUE(step.ok()) << step.status();
    if (!step.ok()) break;
    for (const RowToken& token : *step) tokens.push_back(token.token);
  }
  return tokens;
}

std::string TokenBytes(const std::vector<int64_t>& tokens) {
  std::string bytes;
  for (const int64_t token : tokens) {
    bytes.push_back(static_cast<char>(token & 0xff));
    bytes.push_back(static_cast<char>(token >> 8));
  }
  return bytes;
}

}  // namespace regroup
