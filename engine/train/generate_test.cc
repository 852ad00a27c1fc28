// Generation by a trainer: its ranks step together.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <map>
#include <optional>
#include <thread>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "engine/group/thread_ranks.h"
#include "engine/infer/inference_engine.h"
#include "engine/model/test_models.h"
#include "engine/train/trainer.h"

namespace regroup {
namespace {

struct Answer {
  std::vector<int64_t> tokens;
  std::vector<float> logprobs;
  Finish finish = Finish::kNone;
};

bool operator==(const Answer& a, const Answer& b) {
  return a.tokens == b.tokens && a.logprobs == b.logprobs && a.finish == b.finish;
}

using Answers = std::map<int64_t, Answer>;
using Changes = std::map<std::string, std::string>;

void Add(const std::vector<RowToken>& tokens, Answers* answers) {
  for (const RowToken& token : tokens) {
    Answer& answer = (*answers)[token.row];
    EXPECT_EQ(answer.finish, Finish::kNone);
    answer.tokens.push_back(token.token);
    answer.logprobs.push_back(token.logprob);
    answer.finish = token.finish;
  }
}

std::vector<int64_t> Prompt(int64_t size, int64_t from) {
  std::vector<int64_t> tokens;
  for (int64_t i = 0; i < size; ++i) tokens.push_back((from + i * 31) % 257);
  return tokens;
}

SamplingOptions Options(int64_t max_tokens, double temperature = 0) {
  SamplingOptions options;
  options.max_tokens = max_tokens;
  options.temperature = temperature;
  options.seed = 5;
  return options;
}

const TraceSnapshot* Find(const std::vector<TraceSnapshot>& traces, const std::string& kind) {
  for (const TraceSnapshot& trace : traces) {
    if (trace.kind == kind) return &trace;
  }
  return nullptr;
}

class TrainerGenerateTest : public testing::Test {
 protected:
  // A model whose attention is far from uniform, and a file to train on.
  void Write(const Changes& changes, double spoil = 0) {
    const std::string config = SmallLlamaConfig(changes);
    NamedTensors weights = SmallWeights(ModelOf(config)->table(), 11);
    for (auto& [name, value] : weights) {
      if (value.dim() > 1) value *= 8;
    }
    if (spoil != 0) weights.back().second.fill_(spoil);
    folder_.Write("config.json", config);
    folder_.Write("model.safetensors", SafetensorsBytes(weights));
    std::string text;
    for (const int64_t token : Prompt(12 * 8 + 1, 3)) {
      text.push_back(static_cast<char>(token & 0xff));
      text.push_back(static_cast<char>(token >> 8));
    }
    folder_.Write("text.u16.bin", text);
    loaded_ = Load();
    data_ = Dataset::Open(folder_.File("text.u16.bin"), 8, loaded_->model->limits()).value();
  }

  LoadedModel Load() const { return LoadModel(folder_.path(), std::nullopt, 0).value(); }

  // Makes a trainer on each of `ranks` and runs `body`.
  void Run(const std::vector<int>& ranks, const std::function<void(Trainer&)>& body) const {
    EngineSpec spec;
    spec.name = "tested";
    spec.optimizer.learning_rate = 1e-2;
    spec.layout.ranks = ranks;
    ASSERT_TRUE(CompleteLayout(&spec.layout).ok());
    RunInGroup(ranks, absl::Seconds(60), [&](int rank, std::unique_ptr<Group> group) {
      const LoadedModel own = Load();
      EngineState state = MakeState(own.model->table(), spec.layout, rank, 2);
      ASSERT_TRUE(LoadWeights(own.model->table(), *own.weights, &state, nullptr).ok());
      auto trainer = Trainer::Make(spec, own.model.get(), std::move(state), std::move(group));
      ASSERT_TRUE(trainer.ok()) << trainer.status();
      body(**trainer);
    });
  }

  Answers ByInference(const std::vector<PromptRow>& rows, const SamplingOptions& options) const {
    LoadedModel own = Load();
    Layout layout;
    layout.ranks = {0};
    layout.placement = Placement::kReplicate;
    EngineState state = MakeState(own.model->table(), layout, 0, 0);
    EXPECT_TRUE(LoadWeights(own.model->table(), *own.weights, &state, nullptr).ok());
    const auto engine = InferenceEngine::Make(own.model.get(), std::move(state)).value();
    EXPECT_TRUE(engine->StartGeneration(rows, options).ok());
    Answers answers;
    while (engine->unfinished() > 0) Add(engine->DecodeToken(nullptr).value(), &answers);
    return answers;
  }

  // This rank's share of the rows, as the control plane deals them.
  static std::vector<PromptRow> Share(const std::vector<PromptRow>& rows, const Group& group) {
    const size_t first = rows.size() * group.index() / group.size();
    const size_t end = rows.size() * (group.index() + 1) / group.size();
    return {rows.begin() + first, rows.begin() + end};
  }

  // Collective: to the last row of all. Returns the passes that it took.
  static int Generate(Trainer& trainer, const std::vector<PromptRow>& rows,
                      const SamplingOptions& options, Answers* answers) {
    EXPECT_TRUE(trainer.StartGeneration(Share(rows, trainer.group()), options).ok());
    int passes = 0;
    for (;;) {
      const auto left =
          trainer.group().Exchange(absl::StrCat(trainer.unfinished()), "rows left").value();
      if (std::all_of(left.begin(), left.end(), [](const std::string& s) { return s == "0"; })) {
        break;
      }
      const auto tokens = trainer.DecodeToken(nullptr);
      EXPECT_TRUE(tokens.ok()) << tokens.status();
      if (!tokens.ok()) break;
      ++passes;
      Add(*tokens, answers);
    }
    EXPECT_EQ(trainer.cache_bytes(), 0);
    trainer.EndGeneration();
    return passes;
  }

  // All answers and the trace of each rank.
  void GenerateOn(const std::vector<int>& ranks, const std::vector<PromptRow>& rows,
                  const SamplingOptions& options, int64_t passes, int64_t gathers_a_pass) const {
    const Answers expected = ByInference(rows, options);
    absl::Mutex mutex;
    Answers all;
    Run(ranks, [&](Trainer& trainer) {
      Answers mine;
      EXPECT_EQ(Generate(trainer, rows, options, &mine), passes);
      const std::vector<TraceSnapshot> traces = trainer.traces();
      const TraceSnapshot* trace = Find(traces, "decode");
      ASSERT_NE(trace, nullptr);
      EXPECT_EQ(trace->state, TraceState::kAgreed);
      EXPECT_EQ(trace->records, 1);
      EXPECT_EQ(trace->gathers, passes * gathers_a_pass);
      EXPECT_EQ(trace->reductions, 0);
      EXPECT_EQ(static_cast<int64_t>(trace->entries.size()), gathers_a_pass);
      absl::MutexLock lock(&mutex);
      for (const auto& [row, answer] : mine) {
        EXPECT_TRUE(all.emplace(row, answer).second) << "row " << row << " came twice";
      }
    });
    EXPECT_EQ(all, expected) << ranks.size() << " ranks";
  }

  TempFolder folder_;
  std::optional<LoadedModel> loaded_;
  std::unique_ptr<Dataset> data_;
};

TEST_F(TrainerGenerateTest, AnyNumberOfRanks_IsBitwiseTheInferenceEngineInAsManyPasses) {
  Write({{"eos_token_id", "null"}});
  const std::vector<PromptRow> rows = {
      {0, Prompt(3, 1)}, {1, Prompt(60, 7)}, {2, Prompt(9, 20)}, {3, Prompt(57, 90)}};
  // Rows 1 and 3 end early, at the end of the context; no pass comes after the last one's end.
  GenerateOn({0}, rows, Options(9), 9, 4);
  GenerateOn({0, 1}, rows, Options(9), 9, 4);
  GenerateOn({2, 0, 1}, rows, Options(9, 0.8), 9, 4);
  GenerateOn({0, 1}, {rows[1]}, Options(9), 4, 4);     // a rank without rows
  GenerateOn({0, 1, 2}, {rows[0]}, Options(1), 1, 4);  // two of them
}

TEST_F(TrainerGenerateTest, TiedWeights_AreGatheredTwiceAPass) {
  Write({{"tie_word_embeddings", "true"}});
  GenerateOn({0, 1}, {{0, Prompt(3, 1)}, {1, Prompt(6, 7)}, {2, Prompt(2, 9)}}, Options(5), 5, 5);
}

TEST_F(TrainerGenerateTest, LongPrompts_ArePrefilledInSeveralPasses) {
  Write({{"eos_token_id", "null"}, {"max_position_embeddings", "512"}});
  const std::vector<PromptRow> rows = {
      {0, Prompt(300, 1)}, {1, Prompt(300, 2)}, {2, Prompt(300, 3)}, {3, Prompt(300, 4)}};
  GenerateOn({0, 1}, rows, Options(4), 5, 4);
}

// Losses, weights and moments are those of the same steps without it, and neither kind of pass
// throws away the other's trace.
TEST_F(TrainerGenerateTest, BetweenSteps_LeavesTrainingBitwiseAsItWas) {
  Write({});
  struct Outcome {
    std::vector<double> numbers;
    std::vector<at::Tensor> tensors;
  };
  const std::vector<PromptRow> rows = {{0, Prompt(3, 1)}, {1, Prompt(6, 7)}, {2, Prompt(2, 9)}};
  const auto train = [&](bool generate) {
    std::map<int, Outcome> outcomes;
    absl::Mutex mutex;
    Run({1, 0}, [&](Trainer& trainer) {
      Outcome outcome;
      for (int step = 0; step < 4; ++step) {
        Answers ignored;
        if (generate && step != 1) Generate(trainer, rows, Options(3), &ignored);
        const auto result = trainer.Step(*data_, 3, 1);
        ASSERT_TRUE(result.ok()) << result.status();
        outcome.numbers.push_back(result->loss);
        outcome.numbers.push_back(result->grad_norm);
      }
      for (const UnitState& unit : trainer.state().units) {
        outcome.tensors.push_back(unit.weights.clone());
        for (const at::Tensor& moment : unit.moments) outcome.tensors.push_back(moment.clone());
      }
      const std::vector<TraceSnapshot> traces = trainer.traces();
      EXPECT_EQ(traces.size(), generate ? 2u : 1u);
      for (const TraceSnapshot& trace : traces) {
        EXPECT_EQ(trace.state, TraceState::kAgreed) << trace.kind;
        EXPECT_EQ(trace.records, 1) << trace.kind;
      }
      EXPECT_EQ(trainer.state().step, 4);
      EXPECT_EQ(trainer.state().weights_version, 5);
      absl::MutexLock lock(&mutex);
      outcomes[trainer.group().index()] = std::move(outcome);
    });
    return outcomes;
  };
  const std::map<int, Outcome> plain = train(false), with = train(true);
  for (const int index : {0, 1}) {
    EXPECT_EQ(with.at(index).numbers, plain.at(index).numbers);
    ASSERT_EQ(with.at(index).tensors.size(), plain.at(index).tensors.size());
    for (size_t i = 0; i < plain.at(index).tensors.size(); ++i) {
      EXPECT_TRUE(with.at(index).tensors[i].equal(plain.at(index).tensors[i])) << i;
    }
  }
}

TEST_F(TrainerGenerateTest, TrainedWeights_AreThoseThatItGeneratesWith) {
  Write({});
  const std::vector<PromptRow> rows = {{0, Prompt(5, 1)}};
  const Answers before = ByInference(rows, Options(6));
  Run({0, 1}, [&](Trainer& trainer) {
    for (int step = 0; step < 3; ++step) ASSERT_TRUE(trainer.Step(*data_, 3, 1).ok());
    Answers after;
    Generate(trainer, rows, Options(6), &after);
    if (trainer.group().index() == 1) {
      EXPECT_EQ(after.at(0).tokens.size(), 6u);
      EXPECT_NE(after.at(0).logprobs, before.at(0).logprobs);
    }
  });
}

// Caches count as buffers while they are promised.
TEST_F(TrainerGenerateTest, Memory_ListsTheCaches) {
  Write({});
  Run({0}, [&](Trainer& trainer) {
    const int64_t before = trainer.memory().buffers_bytes;
    ASSERT_TRUE(trainer.StartGeneration({{0, Prompt(3, 1)}}, Options(5)).ok());
    const int64_t caches = loaded_->model->CacheBytes(8);
    EXPECT_EQ(trainer.memory().buffers_bytes, before + caches);
    ASSERT_TRUE(trainer.DecodeToken(nullptr).ok());
    trainer.EndGeneration();
    EXPECT_GE(trainer.memory().peak_bytes, trainer.memory().weights_bytes +
                                               trainer.memory().optimizer_bytes +
                                               trainer.memory().buffers_bytes + caches);
    EXPECT_FALSE(trainer.StartGeneration({{0, {}}}, Options(5)).ok());
  });
}

// A row that nothing can be drawn for ends the generation and breaks nothing.
TEST_F(TrainerGenerateTest, NotANumber_FailsTheRowsRankAndKeepsTheTrainer) {
  Write({}, std::numeric_limits<double>::quiet_NaN());
  Run({0, 1}, [&](Trainer& trainer) {
    const bool has_row = trainer.group().index() == 1;
    ASSERT_TRUE(
        trainer.StartGeneration(Share({{0, Prompt(3, 1)}}, trainer.group()), Options(5)).ok());
    const auto tokens = trainer.DecodeToken(nullptr);
    EXPECT_EQ(tokens.status().code(),
              has_row ? absl::StatusCode::kFailedPrecondition : absl::StatusCode::kOk);
    EXPECT_EQ(trainer.unfinished(), 0);
    EXPECT_TRUE(trainer.group().failure().ok());
    EXPECT_TRUE(trainer.group().Barrier("after").ok());
  });
}

// A rank that waits for one that does not come is ended from outside, and says why.
TEST_F(TrainerGenerateTest, Abort_WhileARankWaits_EndsIt) {
  Write({});
  absl::Notification waits, over;
  Run({0, 1}, [&](Trainer& trainer) {
    ASSERT_TRUE(trainer.StartGeneration({}, Options(5)).ok());
    if (trainer.group().index() == 1) {
      waits.WaitForNotification();
      over.WaitForNotification();
      return;
    }
    std::thread aborting([&] {
      waits.WaitForNotification();
      trainer.Abort(absl::CancelledError("enough"));
    });
    waits.Notify();
    const auto tokens = trainer.DecodeToken(nullptr);
    aborting.join();
    EXPECT_EQ(tokens.status().code(), absl::StatusCode::kCancelled) << tokens.status();
    EXPECT_EQ(trainer.DecodeToken(nullptr).status().code(), absl::StatusCode::kCancelled);
    over.Notify();
  });
}

}  // namespace
}  // namespace regroup
