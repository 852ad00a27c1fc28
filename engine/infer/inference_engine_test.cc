#include "engine/infer/inference_engine.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <set>

#include "absl/strings/match.h"
#include "engine/infer/resident_runner.h"
#include "engine/model/test_models.h"

namespace regroup {
namespace {

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

// What an engine said about one row.
struct Answer {
  std::vector<int64_t> tokens;
  std::vector<float> logprobs;
  Finish finish = Finish::kNone;
};

bool operator==(const Answer& a, const Answer& b) {
  return a.tokens == b.tokens && a.logprobs == b.logprobs && a.finish == b.finish;
}

class InferenceEngineTest : public testing::Test {
 protected:
  explicit InferenceEngineTest(const std::string& eos = "null")
      : model_(ModelOf(SmallLlamaConfig({{"eos_token_id", eos}}))) {
    engine_ = MakeEngine(5);
  }

  EngineState StateOf(uint64_t seed) const {
    const ParamTable& table = model_->table();
    const NamedTensors weights = SmallWeights(table, seed);
    EngineState state;
    state.layout.ranks = {0};
    state.layout.placement = Placement::kReplicate;
    for (const Unit& unit : table.units()) {
      UnitState held;
      held.interval = {0, unit.numel};
      held.weights = at::empty({unit.numel}, at::kFloat);
      for (const int id : unit.parameters) {
        const Parameter& parameter = table.parameter(id);
        held.weights.narrow(0, parameter.offset, parameter.numel)
            .copy_(weights[id].second.reshape({-1}));
      }
      state.units.push_back(held);
    }
    return state;
  }

  std::unique_ptr<InferenceEngine> MakeEngine(uint64_t seed) const {
    return InferenceEngine::Make(model_.get(), StateOf(seed)).value();
  }

  // Runs to the end.
  static std::map<int64_t, Answer> Generate(InferenceEngine& engine,
                                            const std::vector<PromptRow>& rows,
                                            const SamplingOptions& options) {
    EXPECT_TRUE(engine.StartGeneration(rows, options).ok());
    return RunOut(engine);
  }
  static std::map<int64_t, Answer> RunOut(InferenceEngine& engine) {
    std::map<int64_t, Answer> answers;
    while (engine.unfinished() > 0) {
      const auto tokens = engine.DecodeToken(nullptr);
      EXPECT_TRUE(tokens.ok()) << tokens.status();
      if (!tokens.ok()) break;
      for (const RowToken& token : *tokens) {
        Answer& answer = answers[token.row];
        EXPECT_EQ(answer.finish, Finish::kNone);
        answer.tokens.push_back(token.token);
        answer.logprobs.push_back(token.logprob);
        answer.finish = token.finish;
      }
    }
    EXPECT_TRUE(engine.DecodeToken(nullptr)->empty());
    return answers;
  }

  static std::vector<int64_t> Prompt(int64_t size) {
    std::vector<int64_t> tokens;
    for (int64_t i = 0; i < size; ++i) tokens.push_back(i * 31 % 257);
    return tokens;
  }

  // -log p(target) of each position of `tokens` from the training pass, without a cache.
  std::vector<double> ScoresOf(const InferenceEngine& engine, const std::vector<int64_t>& tokens) {
    const at::NoGradGuard no_grad;
    ResidentRunner runner = ResidentRunner::Make(model_->table(), engine.state()).value();
    const auto count = static_cast<int64_t>(tokens.size()) - 1;
    const at::Tensor all = at::tensor(tokens, at::kLong);
    std::vector<double> scores;
    for (int64_t i = 0; i < count; ++i) {
      Batch batch;
      batch.inputs = all.slice(0, 0, count).unsqueeze(0);
      batch.targets = at::full({1, count}, -100, at::kLong);
      batch.targets[0][i] = all[i + 1];
      scores.push_back(model_->LossSum(runner, batch).item<double>());
    }
    return scores;
  }

  std::unique_ptr<Model> model_;
  std::unique_ptr<InferenceEngine> engine_;
};

SamplingOptions Greedy(int64_t max_tokens) {
  SamplingOptions options;
  options.max_tokens = max_tokens;
  return options;
}

SamplingOptions Sampling(int64_t max_tokens, uint64_t seed) {
  SamplingOptions options = Greedy(max_tokens);
  options.temperature = 1;
  options.seed = seed;
  return options;
}

TEST_F(InferenceEngineTest, Greedy_SeveralPrompts_TakesTheLikeliestTokenOfTheFullContext) {
  const std::vector<PromptRow> rows = {{0, Prompt(3)}, {1, Prompt(9)}, {2, {250}}};
  const auto answers = Generate(*engine_, rows, Greedy(12));
  ASSERT_EQ(answers.size(), 3u);
  const at::NoGradGuard no_grad;
  ResidentRunner runner = ResidentRunner::Make(model_->table(), engine_->state()).value();
  for (const PromptRow& row : rows) {
    std::vector<int64_t> context = row.tokens;
    for (size_t i = 0; i < 12; ++i) {
      KvCache cache = model_->MakeCache(static_cast<int64_t>(context.size()));
      const at::Tensor scores =
          model_->NextLogits(runner, at::tensor(context, at::kLong).unsqueeze(0), &cache)
              .log_softmax(-1)[0];
      const int64_t token = answers.at(row.row).tokens[i];
      EXPECT_EQ(token, scores.argmax().item<int64_t>());
      EXPECT_NEAR(answers.at(row.row).logprobs[i], scores[token].item<double>(), 1e-5);
      context.push_back(token);
    }
    EXPECT_EQ(answers.at(row.row).finish, Finish::kLength);
  }
}

TEST_F(InferenceEngineTest, Logprobs_OfTruncatedSampling_AreThoseOfTheTrainingPass) {
  SamplingOptions options = Sampling(40, 11);
  options.top_p = 0.8;
  options.top_k = 20;
  const std::vector<int64_t> prompt = Prompt(8);
  const Answer answer = Generate(*engine_, {{0, prompt}}, options).at(0);
  std::vector<int64_t> all = prompt;
  all.insert(all.end(), answer.tokens.begin(), answer.tokens.end());
  const std::vector<double> scores = ScoresOf(*engine_, all);
  for (size_t i = 0; i < answer.tokens.size(); ++i) {
    // The importance ratio.
    EXPECT_NEAR(std::exp(-scores[prompt.size() - 1 + i] - answer.logprobs[i]), 1, 1e-4);
  }
}

TEST_F(InferenceEngineTest, Sampling_CopiesOfOnePrompt_DifferAndDoNotDependOnWhoHoldsThem) {
  std::vector<PromptRow> rows;
  for (int64_t row = 0; row < 8; ++row) rows.push_back({row, Prompt(4)});
  const auto together = Generate(*engine_, rows, Sampling(20, 1));
  std::set<std::vector<int64_t>> different;
  for (const auto& entry : together) different.insert(entry.second.tokens);
  EXPECT_GE(different.size(), 7u);
  EXPECT_EQ(Generate(*engine_, rows, Sampling(20, 1)), together);
  EXPECT_NE(Generate(*engine_, rows, Sampling(20, 2)), together);

  // Dealt over two engines, in another order.
  const auto other = MakeEngine(5);
  auto dealt = Generate(*engine_, {rows[6], rows[0], rows[2], rows[4]}, Sampling(20, 1));
  dealt.merge(Generate(*other, {rows[7], rows[5], rows[3], rows[1]}, Sampling(20, 1)));
  EXPECT_EQ(dealt, together);
}

TEST_F(InferenceEngineTest, Finish_AtAStopToken_IncludesItAndLeavesTheOthersGoing) {
  const std::vector<PromptRow> rows = {{4, Prompt(3)}, {2, Prompt(7)}};
  const auto free = Generate(*engine_, rows, Sampling(30, 3));
  SamplingOptions options = Sampling(30, 3);
  options.stop_tokens = {free.at(4).tokens[5], 256};
  const auto stopped = Generate(*engine_, rows, options);
  for (const auto& [row, answer] : stopped) {
    const std::vector<int64_t>& whole = free.at(row).tokens;
    const auto stop = std::find_if(whole.begin(), whole.end(), [&options](int64_t token) {
      return token == options.stop_tokens[0] || token == 256;
    });
    const bool found = stop != whole.end();
    EXPECT_EQ(answer.finish, found ? Finish::kStop : Finish::kLength);
    EXPECT_EQ(answer.tokens, std::vector<int64_t>(whole.begin(), found ? stop + 1 : stop));
  }
  EXPECT_EQ(stopped.at(4).finish, Finish::kStop);
}

TEST_F(InferenceEngineTest, Finish_AtTheEndOfTheContext_IsLength) {
  for (const auto& [prompt, max_tokens, expected] :
       std::vector<std::tuple<int64_t, int64_t, size_t>>{{63, 1, 1},
                                                         {63, 2, 1},
                                                         {63, 1000000000, 1},
                                                         {60, INT64_MAX, 4},
                                                         {60, 4, 4},
                                                         {60, 3, 3}}) {
    const Answer answer = Generate(*engine_, {{0, Prompt(prompt)}}, Greedy(max_tokens)).at(0);
    EXPECT_EQ(answer.tokens.size(), expected) << prompt << "+" << max_tokens;
    EXPECT_EQ(answer.finish, Finish::kLength);
  }
}

TEST_F(InferenceEngineTest, CheckPrompt_TooLongOrEmptyOrForeign_NamesWhatIsAllowed) {
  const ModelLimits& limits = model_->limits();
  for (const int64_t size : {64, 65, 1000}) {
    const absl::Status status = CheckPrompt(1, Prompt(size), limits);
    EXPECT_EQ(status.code(), kInvalid);
    EXPECT_TRUE(absl::StrContains(status.message(), "--tokens-file, line 2")) << status;
    EXPECT_TRUE(absl::StrContains(status.message(), "context of 64")) << status;
    EXPECT_TRUE(absl::StrContains(status.message(), std::to_string(size) + " tokens")) << status;
  }
  EXPECT_TRUE(CheckPrompt(1, Prompt(63), limits).ok());
  EXPECT_EQ(CheckPrompt(1, {}, limits).code(), kInvalid);
  for (const int64_t token : {int64_t{257}, int64_t{-1}, INT64_MAX}) {
    const absl::Status status = CheckPrompt(1, {1, 2, token}, limits);
    EXPECT_EQ(status.code(), kInvalid);
    EXPECT_TRUE(
        absl::StrContains(status.message(), "token " + std::to_string(token) + " at position 2"))
        << status;
    EXPECT_TRUE(absl::StrContains(status.message(), "from 0 to 256")) << status;
  }
}

TEST_F(InferenceEngineTest, CheckSampling_OutOfRange_NamesFlagAndValue) {
  const ModelLimits& limits = model_->limits();
  const auto expect = [&limits](const SamplingOptions& options, const std::string& words) {
    const absl::Status status = CheckSampling(options, limits);
    EXPECT_EQ(status.code(), kInvalid) << words;
    EXPECT_TRUE(absl::StrContains(status.message(), words)) << status;
  };
  for (const int64_t max_tokens : {int64_t{0}, int64_t{-1}, INT64_MIN}) {
    expect(Greedy(max_tokens), "--max-tokens=" + std::to_string(max_tokens));
  }
  for (const double temperature : {-0.1, static_cast<double>(NAN), static_cast<double>(INFINITY)}) {
    SamplingOptions options = Greedy(1);
    options.temperature = temperature;
    expect(options, "--temperature=");
  }
  for (const double top_p : {1.5, -1e-9, static_cast<double>(NAN)}) {
    SamplingOptions options = Sampling(1, 0);
    options.top_p = top_p;
    expect(options, "--top-p=");
  }
  SamplingOptions options = Sampling(1, 0);
  options.top_k = -1;
  expect(options, "--top-k=-1");
  options = Greedy(1);
  options.stop_tokens = {2, 257};
  expect(options, "--stop-token=257");
  options.stop_tokens = {-1};
  expect(options, "--stop-token=-1");
  options = Sampling(1, 0);
  options.top_p = 0;
  options.top_k = 100000;
  EXPECT_TRUE(CheckSampling(options, limits).ok());
  EXPECT_EQ(CheckSampling(Greedy(1), ModelLimits{}).code(), kInvalid);
}

TEST_F(InferenceEngineTest, StartGeneration_Refused_KeepsTheOneUnderWay) {
  ASSERT_TRUE(engine_->StartGeneration({{0, Prompt(3)}}, Greedy(5)).ok());
  EXPECT_EQ(engine_->StartGeneration({{0, Prompt(64)}}, Greedy(5)).code(), kInvalid);
  EXPECT_EQ(engine_->StartGeneration({{0, Prompt(3)}, {0, Prompt(3)}}, Greedy(5)).code(), kInvalid);
  EXPECT_EQ(engine_->StartGeneration({{0, Prompt(3)}}, Greedy(0)).code(), kInvalid);
  EXPECT_EQ(RunOut(*engine_).at(0).tokens.size(), 5u);
}

TEST_F(InferenceEngineTest, DecodeToken_LongPrompts_AreBoundedInEachCallAndChangeNothing) {
  std::vector<PromptRow> rows;
  for (int64_t row = 0; row < 20; ++row) rows.push_back({row, Prompt(60)});
  ASSERT_TRUE(engine_->StartGeneration(rows, Sampling(3, 1)).ok());
  // 8 rows of 60 tokens fit, then 8 more beside the first, then the last 4.
  std::vector<size_t> counts;
  while (engine_->unfinished() > 0) counts.push_back(engine_->DecodeToken(nullptr)->size());
  EXPECT_EQ(counts, (std::vector<size_t>{8, 16, 20, 12, 4}));
  const auto together = Generate(*engine_, rows, Sampling(3, 1));
  for (const PromptRow& row : rows) {
    EXPECT_EQ(Generate(*engine_, {row}, Sampling(3, 1)).at(row.row), together.at(row.row));
  }
}

TEST_F(InferenceEngineTest, DecodeToken_ToldToStop_EndsBetweenTwoRows) {
  ASSERT_TRUE(engine_->StartGeneration({{0, Prompt(6)}, {1, Prompt(6)}}, Greedy(10)).ok());
  int asked = 0;
  const auto tokens = engine_->DecodeToken(
      [&] { return ++asked == 2 ? absl::CancelledError("enough") : absl::OkStatus(); });
  EXPECT_EQ(tokens.status().message(), "enough");
  EXPECT_EQ(asked, 2);
  EXPECT_EQ(engine_->unfinished(), 0);
}

TEST_F(InferenceEngineTest, CacheBytes_OfUnfinishedRows_IsWhatTheirCachesTake) {
  ASSERT_TRUE(engine_->StartGeneration({{0, Prompt(6)}, {1, Prompt(60)}}, Greedy(10)).ok());
  // Keys and values of 2 layers, 2 heads of 16, fp32; the second row's context ends at 64.
  EXPECT_EQ(engine_->cache_bytes(), (16 + 64) * 2 * 2 * 2 * 16 * 4);
  const KvCache cache = model_->MakeCache(16);
  EXPECT_EQ(model_->CacheBytes(16),
            static_cast<int64_t>(2 * (cache.keys[0].nbytes() + cache.values[0].nbytes())));
  for (int i = 0; i < 4; ++i) ASSERT_TRUE(engine_->DecodeToken(nullptr).ok());
  EXPECT_EQ(engine_->cache_bytes(), model_->CacheBytes(16));
  engine_->EndGeneration();
  EXPECT_EQ(engine_->cache_bytes(), 0);
}

TEST_F(InferenceEngineTest, EndGeneration_InTheMiddle_LeavesNothingUnfinished) {
  ASSERT_TRUE(engine_->StartGeneration({{0, Prompt(6)}}, Greedy(10)).ok());
  EXPECT_EQ(engine_->unfinished(), 1);
  engine_->EndGeneration();
  EXPECT_EQ(engine_->unfinished(), 0);
  EXPECT_TRUE(engine_->DecodeToken(nullptr)->empty());
}

TEST_F(InferenceEngineTest, DecodeToken_DivergedWeights_ReturnsAnErrorAndEnds) {
  EngineState state = StateOf(5);
  state.units[1].weights.fill_(NAN);
  engine_ = InferenceEngine::Make(model_.get(), std::move(state)).value();
  ASSERT_TRUE(engine_->StartGeneration({{0, Prompt(6)}}, Greedy(10)).ok());
  EXPECT_EQ(engine_->DecodeToken(nullptr).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(engine_->unfinished(), 0);
}

TEST_F(InferenceEngineTest, Make_StateOfAnotherModel_IsRefused) {
  EngineState state = StateOf(5);
  state.units[0].weights = state.units[0].weights.slice(0, 1);
  EXPECT_EQ(InferenceEngine::Make(model_.get(), state).status().code(), kInvalid);
  state = StateOf(5);
  state.units.pop_back();
  EXPECT_EQ(InferenceEngine::Make(model_.get(), state).status().code(), kInvalid);
}

TEST_F(InferenceEngineTest, Make_FullWeights_AreUsedInPlace) {
  const EngineState state = StateOf(5);
  const ResidentRunner runner = ResidentRunner::Make(model_->table(), state).value();
  ResidentRunner(runner).Run(
      1, at::Tensor(),
      [&](const at::Tensor&, absl::Span<const at::Tensor> params) {
        const Parameter& second = model_->table().parameter(model_->table().unit(1).parameters[1]);
        EXPECT_EQ(params[1].data_ptr(),
                  static_cast<float*>(state.units[1].weights.data_ptr()) + second.offset);
        EXPECT_EQ(params[1].sizes().vec(), second.shape);
        return at::Tensor();
      },
      {});
}

class EosTest : public InferenceEngineTest {
 protected:
  EosTest() : InferenceEngineTest("[7, 9, 11]") {}
};

TEST_F(EosTest, Finish_NoStopTokenGiven_UsesTheConfigsEos) {
  int stopped = 0;
  for (uint64_t seed = 0; seed < 20; ++seed) {
    const Answer answer = Generate(*engine_, {{0, Prompt(2)}}, Sampling(60, seed)).at(0);
    for (size_t i = 0; i < answer.tokens.size(); ++i) {
      const int64_t token = answer.tokens[i];
      const bool is_eos = token == 7 || token == 9 || token == 11;
      const bool is_last = i + 1 == answer.tokens.size();
      EXPECT_EQ(is_eos, is_last && answer.finish == Finish::kStop);
    }
    stopped += answer.finish == Finish::kStop ? 1 : 0;
  }
  EXPECT_GT(stopped, 0);
}

}  // namespace
}  // namespace regroup
