// Weights go from a trainer into inference engines whole, and what is generated is what plain
// libtorch would generate from them.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/system/cli.h"
#include "tests/system/fixtures.h"

namespace regroup::harness {
namespace {

using Prompts = std::vector<std::vector<int64_t>>;

TrainArgs Text(int64_t steps) { return {Data().text.path, steps, 4, kSeq, {}}; }

// Steep enough to change every answer in a few steps.
reference::TrainOptions Steep() { return AdamW(1e-2); }

Prompts SomePrompts() {
  return {{5},      {17, 200, 3},        {256, 0, 1, 2, 9, 9, 9}, {44, 43, 42, 41},
          {8, 100}, {90, 91, 92, 93, 94}};
}

class InferenceTest : public FixtureTest {
 protected:
  static void SetUpTestSuite() { StartDaemonOnFixtures(4); }

  static void CreateTrainer(const std::string& name, const std::string& ranks,
                            const LlamaFixture& model = Data().untied) {
    cli().Create(name, ranks, model.folder, OptimizerFlags(Steep()));
  }

  // What `rollout` computes with is what `actor` exports.
  static void ExpectSynced(const std::string& actor, const std::string& rollout,
                           const LlamaFixture& model = Data().untied) {
    const TensorMap weights = cli().Export(actor);
    const auto version = cli().Row(actor)["weightsVersion"].get<int64_t>();
    EXPECT_EQ(cli().Row(rollout)["weightsVersion"], version);
    const Prompts prompts = SomePrompts();
    const std::vector<Generated> outputs = cli().Generate(rollout, prompts, 8);
    for (size_t i = 0; i < prompts.size(); ++i) {
      EXPECT_EQ(outputs[i].weights_version, version);
      ExpectGreedy(prompts[i], outputs[i], model, weights);
    }
  }
};

TEST_F(InferenceTest, Generate_FromAFile_IsGreedyOfPlainTorch) {
  cli().CreateRollout("rollout", "3", Data().untied.folder);
  const Prompts prompts = SomePrompts();
  const std::vector<Generated> outputs = cli().Generate("rollout", prompts, 20);
  for (size_t i = 0; i < prompts.size(); ++i) {
    EXPECT_EQ(outputs[i].weights_version, 1);
    ExpectGreedy(prompts[i], outputs[i], Data().untied, Data().untied.weights);
  }
}

TEST_F(InferenceTest, Generate_TokensOnTheCommandLine_EqualTokensOfAFile) {
  cli().CreateRollout("rollout", "0-1", Data().tied.folder);
  const Generated expected = cli().Generate("rollout", {{17, 200, 3}}, 5)[0];
  ExpectGreedy({17, 200, 3}, expected, Data().tied, Data().tied.weights);
  const CtlResult result =
      cli().ctl().MustRun({"generate", "rollout", "--tokens=17,200,3", "--max-tokens=5"});
  const nlohmann::json output = result.rows().back()["outputs"][0];
  EXPECT_EQ(output["tokens"], expected.tokens);
}

// HF folder -> trainer -> inference engine without a step: the same weights bit for bit, so the
// same numbers as an inference engine that read the file itself.
TEST_F(InferenceTest, Sync_WithoutAStep_EqualsTheFileBitForBit) {
  cli().CreateRollout("from_file", "3", Data().untied.folder);
  const std::vector<Generated> expected = cli().Generate("from_file", SomePrompts(), 12);
  cli().Delete("from_file");
  // Other weights at first, or nothing would have to be moved.
  const std::string folder = DataPath("other_weights");
  WriteSmallLlama(folder, Data().untied.shape, 77);
  CreateTrainer("actor", "0-2");
  cli().CreateRollout("rollout", "3", folder);
  const std::vector<Generated> other = cli().Generate("rollout", SomePrompts(), 12);
  cli().Sync("actor", "rollout");
  const std::vector<Generated> synced = cli().Generate("rollout", SomePrompts(), 12);
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_NE(other[i].logprobs, expected[i].logprobs);
    EXPECT_EQ(synced[i].tokens, expected[i].tokens);
    EXPECT_EQ(synced[i].logprobs, expected[i].logprobs);
  }
}

// No rank of either engine has the number that it has in its group. The prompts are dealt over both
// inference ranks.
TEST_F(InferenceTest, Sync_AfterTraining_ComputesWithTheExportedWeights) {
  CreateTrainer("actor", "1,3");
  cli().CreateRollout("rollout", "2,0", Data().untied.folder);
  cli().Train("actor", Text(3));
  cli().Sync("actor", "rollout");
  ExpectSynced("actor", "rollout");
}

TEST_F(InferenceTest, Sync_OverlappingRanks_ComputesWithTheExportedWeights) {
  CreateTrainer("actor", "3,1,0");
  cli().CreateRollout("rollout", "1-2", Data().untied.folder);
  cli().Train("actor", Text(2));
  cli().Sync("actor", "rollout");
  ExpectSynced("actor", "rollout");
  // And from another layout of the trainer.
  cli().Relayout("actor", "2");
  cli().Train("actor", Text(1));
  cli().Sync("actor", "rollout");
  ExpectSynced("actor", "rollout");
}

TEST_F(InferenceTest, Sync_TiedWeights_ComputesWithTheExportedWeights) {
  CreateTrainer("actor", "0-1", Data().tied);
  cli().CreateRollout("rollout", "0-3", Data().tied.folder);
  cli().Train("actor", Text(3));
  cli().Sync("actor", "rollout");
  ExpectSynced("actor", "rollout", Data().tied);
}

TEST_F(InferenceTest, Sync_TwiceAndAgain_IsWholeEachTime) {
  CreateTrainer("actor", "0-1");
  cli().CreateRollout("rollout", "2-3", Data().untied.folder);
  cli().Train("actor", Text(2));
  cli().Sync("actor", "rollout");
  const std::vector<Generated> once = cli().Generate("rollout", SomePrompts(), 8);
  cli().Sync("actor", "rollout");
  const std::vector<Generated> twice = cli().Generate("rollout", SomePrompts(), 8);
  for (size_t i = 0; i < once.size(); ++i) EXPECT_EQ(twice[i].logprobs, once[i].logprobs);
  ExpectSynced("actor", "rollout");
  cli().Train("actor", Text(1));
  cli().Sync("actor", "rollout");
  const std::vector<Generated> after = cli().Generate("rollout", SomePrompts(), 8);
  EXPECT_NE(after[0].logprobs, once[0].logprobs);
  ExpectSynced("actor", "rollout");
}

// Keys and values that were computed with old weights do not survive a sync.
TEST_F(InferenceTest, Generate_SamePromptAfterSync_EqualsAFreshEngine) {
  CreateTrainer("actor", "0-1");
  cli().CreateRollout("rollout", "2-3", Data().untied.folder);
  const std::vector<Generated> before = cli().Generate("rollout", SomePrompts(), 16);
  cli().Train("actor", Text(5));
  cli().Sync("actor", "rollout");
  const std::vector<Generated> after = cli().Generate("rollout", SomePrompts(), 16);
  cli().CreateRollout("fresh", "2-3", cli().ExportFolder("actor"));
  const std::vector<Generated> fresh = cli().Generate("fresh", SomePrompts(), 16);
  for (size_t i = 0; i < after.size(); ++i) {
    EXPECT_EQ(after[i].tokens, fresh[i].tokens);
    EXPECT_EQ(after[i].logprobs, fresh[i].logprobs);
    EXPECT_NE(after[i].logprobs, before[i].logprobs);
    EXPECT_EQ(after[i].weights_version, 6);
  }
}

// Two clients, one that syncs and one that moves the trainer: nobody hangs, and every sync is
// whole.
TEST_F(InferenceTest, Sync_WhileTheTrainerIsMoved_IsWholeEachTime) {
  CreateTrainer("actor", "0-1");
  cli().CreateRollout("rollout", "2-3", Data().untied.folder);
  cli().Train("actor", Text(2));
  for (int round = 0; round < 15 && !HasFailure(); ++round) {
    const auto sync = cli().ctl().Start({"engine", "sync", "actor", "rollout"});
    const auto move = cli().ctl().Start(
        {"engine", "relayout", "actor", round % 2 == 0 ? "--ranks=1-2" : "--ranks=3,0-1"});
    EXPECT_EQ(sync->Finish(absl::Seconds(30)), 0) << sync->Errors();
    EXPECT_EQ(move->Finish(absl::Seconds(30)), 0) << move->Errors();
  }
  ExpectSynced("actor", "rollout");
}

TEST_F(InferenceTest, Sync_WrongEngines_IsRefusedAndChangesNothing) {
  CreateTrainer("actor", "0-1");
  CreateTrainer("other_actor", "2");
  cli().CreateRollout("rollout", "3", Data().untied.folder);
  cli().CreateRollout("tied", "3", Data().tied.folder);
  const nlohmann::json before = cli().ctl().MustRun({"engine", "list"}).json();
  const std::vector<std::pair<std::string, std::string>> wrong = {
      {"rollout", "actor"}, {"actor", "other_actor"}, {"rollout", "tied"}, {"actor", "actor"},
      {"actor", "tied"},    {"nobody", "rollout"},    {"actor", "nobody"}};
  for (const auto& [source, destination] : wrong) {
    const CtlResult result = cli().ctl().Run({"engine", "sync", source, destination});
    EXPECT_EQ(result.exit, 1) << source << " " << destination << result.output;
    EXPECT_TRUE(result.errors.find(source) != std::string::npos ||
                result.errors.find(destination) != std::string::npos)
        << result.errors;
  }
  EXPECT_EQ(cli().ctl().MustRun({"engine", "list"}).json(), before);
  cli().Sync("actor", "rollout");
  ExpectSynced("actor", "rollout");
}

TEST_F(InferenceTest, Generate_OverSeveralRanks_EqualsOneRank) {
  Prompts prompts = SomePrompts();
  prompts.push_back({1});
  cli().CreateRollout("one", "3", Data().untied.folder);
  cli().CreateRollout("two", "2,0", Data().untied.folder);
  cli().CreateRollout("four", "0-3", Data().untied.folder);
  for (const Flags& flags :
       {Flags{}, Flags{"--temperature=1", "--seed=11"},
        Flags{"--temperature=0.7", "--seed=12", "--top-p=0.9", "--top-k=50"}}) {
    const std::vector<Generated> one = cli().Generate("one", prompts, 10, flags);
    for (const std::string engine : {"two", "four"}) {
      const std::vector<Generated> several = cli().Generate(engine, prompts, 10, flags);
      for (size_t i = 0; i < prompts.size(); ++i) {
        EXPECT_EQ(several[i].tokens, one[i].tokens) << engine << " row " << i;
        EXPECT_EQ(several[i].logprobs, one[i].logprobs) << engine << " row " << i;
      }
    }
  }
  // Fewer prompts than ranks.
  const std::vector<Generated> single = cli().Generate("four", {{17, 200, 3}}, 5);
  ExpectGreedy({17, 200, 3}, single[0], Data().untied, Data().untied.weights);
}

TEST_F(InferenceTest, Generate_Seeds_DecideAllOfIt) {
  cli().CreateRollout("rollout", "1-2", Data().untied.folder);
  const Prompts copies(8, {17, 200, 3});
  const auto tokens = [&](const Flags& flags) {
    std::vector<std::vector<int64_t>> result;
    for (const Generated& output : cli().Generate("rollout", copies, 20, flags)) {
      result.push_back(output.tokens);
    }
    return result;
  };
  const auto first = tokens({"--temperature=1", "--seed=1"});
  EXPECT_EQ(tokens({"--temperature=1", "--seed=1"}), first);
  EXPECT_NE(tokens({"--temperature=1", "--seed=2"}), first);
  const auto without = tokens({"--temperature=1"});
  EXPECT_EQ(tokens({"--temperature=1", "--seed=0"}), without) << "the default";
  EXPECT_GE(std::set<std::vector<int64_t>>(without.begin(), without.end()).size(), 7u);
  EXPECT_GE(std::set<std::vector<int64_t>>(first.begin(), first.end()).size(), 7u)
      << "copies of a prompt have generators of their own";
}

TEST_F(InferenceTest, Generate_Truncation_KeepsToTheLikelyTokensAndReportsRawLogprobs) {
  cli().CreateRollout("rollout", "3", Data().untied.folder);
  const std::vector<int64_t> prompt = {17, 200, 3};
  const Prompts copies(6, prompt);
  const std::vector<Generated> greedy = cli().Generate("rollout", {prompt}, 10);
  for (const Flags& flags : {Flags{"--temperature=1", "--seed=3", "--top-k=1"},
                             Flags{"--temperature=1", "--seed=3", "--top-p=0"},
                             Flags{"--temperature=1", "--seed=3", "--top-p=0.000000001"}}) {
    EXPECT_EQ(cli().Generate("rollout", {prompt}, 10, flags)[0].tokens, greedy[0].tokens)
        << flags.back();
  }
  const auto all = cli().Generate("rollout", copies, 10, {"--temperature=1", "--seed=3"});
  for (const std::string flag : {"--top-k=257", "--top-k=258", "--top-k=100000", "--top-p=1"}) {
    const auto same = cli().Generate("rollout", copies, 10, {"--temperature=1", "--seed=3", flag});
    for (size_t i = 0; i < all.size(); ++i) EXPECT_EQ(same[i].tokens, all[i].tokens) << flag;
  }

  constexpr double kTemperature = 0.8;
  constexpr double kTopP = 0.6;
  constexpr int64_t kTopK = 20;
  const auto nucleus = cli().Generate(
      "rollout", copies, 20, {"--temperature=0.8", "--seed=4", absl::StrCat("--top-p=", kTopP)});
  const auto top_k = cli().Generate(
      "rollout", copies, 20, {"--temperature=0.8", "--seed=4", absl::StrCat("--top-k=", kTopK)});
  const reference::Weights weights = ToWeights(Data().untied.weights);
  const auto check = [&](const Generated& output, bool by_mass) {
    std::vector<int64_t> row = prompt;
    row.insert(row.end(), output.tokens.begin(), output.tokens.end());
    const at::Tensor logprobs = reference::LogProbs(ReferenceOf(Data().untied.shape), weights, row);
    for (size_t i = 0; i < output.tokens.size(); ++i) {
      const at::Tensor raw = logprobs[static_cast<int64_t>(prompt.size() + i) - 1];
      EXPECT_NEAR(output.logprobs[i], raw[output.tokens[i]].item<double>(), 1e-4);
      double total = 0;
      double above = 0;  // mass of the tokens that are more likely than this one
      int64_t rank = 0;
      const double own = raw[output.tokens[i]].item<double>();
      for (int64_t token = 0; token < raw.numel(); ++token) {
        const double other = raw[token].item<double>();
        const double mass = std::exp(other / kTemperature);
        total += mass;
        if (other > own + 1e-5) {
          above += mass;
          ++rank;
        }
      }
      if (by_mass) EXPECT_LT(above / total, kTopP + 1e-4);
      if (!by_mass) EXPECT_LT(rank, kTopK);
    }
  };
  for (const Generated& output : nucleus) check(output, true);
  for (const Generated& output : top_k) check(output, false);
}

TEST_F(InferenceTest, Generate_StopTokens_EndTheRowAndAreGiven) {
  cli().CreateRollout("rollout", "3", Data().untied.folder);
  const std::vector<int64_t> prompt = {17, 200, 3};
  const Generated free = cli().Generate("rollout", {prompt}, 12)[0];
  ASSERT_EQ(free.tokens.size(), 12u) << "the eos came by chance; take another prompt";
  EXPECT_EQ(free.finish_reason, "LENGTH");
  const int64_t stop = free.tokens[4];
  const auto first = std::find(free.tokens.begin(), free.tokens.end(), stop);
  const std::vector<int64_t> expected(free.tokens.begin(), first + 1);
  for (const Flags& flags : {Flags{absl::StrCat("--stop-token=", stop)},
                             Flags{"--stop-token=250", absl::StrCat("--stop-token=", stop)}}) {
    const Generated stopped = cli().Generate("rollout", {prompt}, 12, flags)[0];
    EXPECT_EQ(stopped.tokens, expected);
    EXPECT_EQ(stopped.finish_reason, "STOP");
  }
}

// Without --stop-token the config's eos ends a row.
TEST_F(InferenceTest, Generate_ConfigEos_EndsTheRow) {
  const std::vector<int64_t> prompt = {17, 200, 3};
  cli().CreateRollout("rollout", "3", Data().untied.folder);
  const Generated free = cli().Generate("rollout", {prompt}, 6)[0];
  cli().Delete("rollout");
  for (const nlohmann::json& eos :
       {nlohmann::json(free.tokens[3]), nlohmann::json({255, free.tokens[3]})}) {
    const std::string folder = DataPath("eos" + std::to_string(eos.size()));
    nlohmann::json config = ConfigOf(Data().untied.shape);
    config["eos_token_id"] = eos;
    WriteModel(folder, config, Data().untied.weights);
    cli().CreateRollout("rollout", "3", folder);
    const Generated stopped = cli().Generate("rollout", {prompt}, 6)[0];
    EXPECT_EQ(stopped.finish_reason, "STOP");
    EXPECT_EQ(stopped.tokens.back(), free.tokens[3]);
    EXPECT_LE(stopped.tokens.size(), 4u);
    cli().Delete("rollout");
  }
}

TEST_F(InferenceTest, Generate_AtTheEndOfTheContext_StopsOrIsRefused) {
  cli().CreateRollout("rollout", "3", Data().untied.folder);
  const std::vector<int64_t> tokens = RandomTokens(65, 257, 21);
  const auto first = [&](int64_t count) {
    return std::vector<int64_t>(tokens.begin(), tokens.begin() + count);
  };
  for (const int64_t max_tokens : {1, 2, 1000}) {
    const Generated last = cli().Generate("rollout", {first(63)}, max_tokens)[0];
    EXPECT_EQ(last.tokens.size(), 1u);
    EXPECT_EQ(last.finish_reason, "LENGTH");
    ExpectGreedy(first(63), last, Data().untied, Data().untied.weights);
  }
  const Generated long_row = cli().Generate("rollout", {first(40)}, 1000)[0];
  EXPECT_EQ(long_row.tokens.size(), 24u);
  ExpectGreedy(first(40), long_row, Data().untied, Data().untied.weights);
  for (const int64_t length : {64, 65}) {
    const std::string file = NewFolder("prompt") + "/prompt.jsonl";
    WriteFile(file, nlohmann::json(first(length)).dump() + "\n");
    const CtlResult result =
        cli().ctl().Run({"generate", "rollout", "--tokens-file=" + file, "--max-tokens=1"});
    EXPECT_EQ(result.exit, 1);
    EXPECT_NE(result.errors.find("64"), std::string::npos) << result.errors;
  }
}

// Two clients at once on one engine, and a trainer on the same ranks: everybody gets the right
// answer.
TEST_F(InferenceTest, Generate_ByTwoClientsWhileATrainerSharesTheRanks_KeepsItsBits) {
  cli().CreateRollout("rollout", "1-2", Data().untied.folder);
  CreateTrainer("actor", "0-2");
  const auto start = [](const std::string& tokens) {
    return cli().ctl().Start({"generate", "rollout", "--tokens=" + tokens, "--max-tokens=40"});
  };
  const auto tokens_of = [](Process& process) {
    const CtlResult result = Collect(process);
    EXPECT_EQ(result.exit, 0) << result.errors;
    return result.ok() ? result.rows().back()["outputs"][0]["tokens"] : nlohmann::json();
  };
  const nlohmann::json expected_a = tokens_of(*start("5,6,7"));
  const nlohmann::json expected_b = tokens_of(*start("200"));
  const auto train = cli().ctl().Start(TrainCommand("actor", Text(50)));
  const auto a = start("5,6,7");
  const auto b = start("200");
  EXPECT_EQ(tokens_of(*a), expected_a);
  EXPECT_EQ(tokens_of(*b), expected_b);
  EXPECT_EQ(Collect(*train).exit, 0);
}

}  // namespace
}  // namespace regroup::harness
