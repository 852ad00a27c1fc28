// Two daemons, one cluster: ranks of both in one engine, numbers that stay, and paths that each
// node judges by its own roots.
#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/system/cli.h"
#include "tests/system/fixtures.h"

namespace regroup::harness {
namespace {

using Steps = std::vector<StepRecord>;

TrainArgs Text(int64_t steps) { return {Data().text.path, steps, 4, kSeq, {}}; }

void ExpectMentions(const std::string& text, const std::vector<std::string>& words) {
  for (const std::string& word : words) {
    EXPECT_NE(text.find(word), std::string::npos) << "\"" << word << "\" is not in: " << text;
  }
}

// a has ranks 0-1, b 2-3.
class NodesTest : public FixtureTest {
 protected:
  static void SetUpTestSuite() {
    StartDaemonOnFixtures(2);
    StartJoined("b", 2);
  }

  static void Create(const std::string& name, const std::string& ranks) {
    cli().Create(name, ranks, Data().untied.folder, OptimizerFlags(AdamW()));
  }
};

TEST_F(NodesTest, Lists_ShowNodesAndTheirRanks) {
  const nlohmann::json nodes = cli().ctl().MustRun({"node", "list"}).json()["nodes"];
  ASSERT_EQ(nodes.size(), 2u) << nodes;
  EXPECT_EQ(nodes[0]["node"], "a");
  EXPECT_EQ(nodes[0]["address"], daemon().address());
  EXPECT_EQ(nodes[0]["ranks"], (std::vector<int>{0, 1}));
  EXPECT_EQ(nodes[1]["node"], "b");
  EXPECT_EQ(nodes[1]["address"], joined(0).address());
  EXPECT_EQ(nodes[1]["ranks"], (std::vector<int>{2, 3}));
  for (const nlohmann::json& node : nodes) EXPECT_EQ(node["state"], "READY");
  for (int rank = 0; rank < 4; ++rank) {
    EXPECT_TRUE(daemon().WaitForRestart(rank, -1)) << rank;
    EXPECT_EQ(daemon().RankRow(rank)["node"], rank < 2 ? "a" : "b");
  }
}

TEST_F(NodesTest, ControlOfAJoinedDaemon_NamesThePrimary) {
  for (const std::vector<std::string>& command :
       {std::vector<std::string>{"status"}, {"engine", "delete", "e"}}) {
    const CtlResult refused = joined(0).ctl().Run(command);
    EXPECT_EQ(refused.exit, 1);
    ExpectMentions(refused.errors, {"node b", daemon().address()});
  }
}

// Everything that an engine goes through, with ranks of two nodes.
TEST_F(NodesTest, Story_OverTwoNodes) {
  Create("actor", "0-3");
  ReferenceRun reference(Data().untied, Data().text, AdamW());
  ExpectSteps(cli().Train("actor", Text(3)), reference.Train(3, 4));
  const TensorMap before = cli().Export("actor");
  cli().Relayout("actor", "3,1");
  EXPECT_TRUE(Differences(cli().Export("actor"), before).empty());
  ExpectSteps(cli().Train("actor", Text(2)), reference.Train(2, 4), 4);
  cli().CreateRollout("rollout", "0,2", Data().untied.folder);
  cli().Sync("actor", "rollout");
  const std::vector<std::vector<int64_t>> prompts = {{1, 2, 3}, {7, 8}, {9}};
  const std::vector<Generated> outputs = cli().Generate("rollout", prompts, 6);
  const TensorMap weights = cli().Export("actor");
  ASSERT_EQ(outputs.size(), prompts.size());
  for (size_t i = 0; i < prompts.size(); ++i) {
    EXPECT_EQ(outputs[i].weights_version, 6);
    ExpectGreedy(prompts[i], outputs[i], Data().untied, weights);
  }
  cli().Relayout("actor", "2-3");
  cli().Relayout("actor", "0-1");
  EXPECT_TRUE(Differences(cli().Export("actor"), weights).empty());
  cli().Delete("actor");
  cli().Delete("rollout");
  for (int rank = 0; rank < 4; ++rank) EXPECT_EQ(daemon().RankRow(rank)["engines"].size(), 0u);
}

// Where the ranks are makes no difference to a single bit.
TEST_F(NodesTest, Train_AcrossNodes_HasTheBitsOfOneNode) {
  std::vector<Steps> runs;
  std::vector<TensorMap> weights;
  for (const char* ranks : {"0-1", "1-2", "3,2"}) {
    Create("e", ranks);
    runs.push_back(cli().Train("e", Text(4)));
    weights.push_back(cli().Export("e"));
    cli().Delete("e");
  }
  for (size_t i = 1; i < runs.size(); ++i) {
    EXPECT_EQ(runs[i], runs[0]);
    EXPECT_TRUE(Differences(weights[i], weights[0]).empty());
  }
}

TEST_F(NodesTest, Clients_OnEnginesOfBothNodes_DoNotWaitForEachOther) {
  Create("long", "1-2");
  const auto train = cli().ctl().Start(TrainCommand("long", Text(1000000)));
  ASSERT_TRUE(WaitUntil(absl::Seconds(30), [&] { return !train->OutputLines().empty(); }));
  // Ten clients at once on engines that share its ranks, and one that vanishes.
  std::vector<std::unique_ptr<Process>> clients;
  for (int i = 0; i < 4; ++i) Create(absl::StrCat("e", i), i % 2 == 0 ? "0,3" : "2-3");
  for (int i = 0; i < 10; ++i) {
    clients.push_back(cli().ctl().Start(TrainCommand(absl::StrCat("e", i % 4), Text(3))));
  }
  const auto vanishing = cli().ctl().Start(TrainCommand("e0", Text(1000000)));
  EXPECT_TRUE(WaitUntil(absl::Seconds(60), [&] { return !vanishing->OutputLines().empty(); }));
  vanishing->Signal(SIGKILL);
  for (const auto& client : clients) EXPECT_EQ(Collect(*client).exit, 0);
  EXPECT_TRUE(train->Running());
  // Two or three runs on each engine, one after the other: every step happened once.
  EXPECT_TRUE(WaitUntil(absl::Seconds(30), [&] { return cli().Row("e0")["activity"] == ""; }));
  for (int i = 1; i < 4; ++i) {
    const nlohmann::json row = cli().Row(absl::StrCat("e", i));
    EXPECT_EQ(row["step"], i == 1 ? 9 : 6) << row;
    EXPECT_EQ(row["dataPosition"], row["step"]);
  }
  train->Signal(SIGINT);
  EXPECT_EQ(Collect(*train).exit, 0);
}

TEST_F(NodesTest, Join_WhatDoesNotFit_IsRefused) {
  struct Case {
    DaemonOptions options;
    std::vector<std::string> words;
  };
  std::vector<Case> cases(4);
  cases[0].options.node = "b";
  cases[0].options.ranks = 3;
  cases[0].words = {"--ranks=3", "node b has ranks 2-3"};
  cases[1].options.node = "b";
  cases[1].options.ranks = 2;
  cases[1].words = {"--node=b is taken", joined(0).address()};
  cases[2].options.node = "c";
  cases[2].options.flags = {"--first-rank=1"};
  cases[2].words = {"--first-rank=1", "node a has ranks 0-1"};
  cases[3].options.node = "a";
  cases[3].words = {"--node=a is taken"};
  for (Case& each : cases) {
    each.options.join = daemon().address();
    each.options.data_root = Data().root;
    each.options.state_dir = NewFolder("state");
    const auto process = Process::Start(DaemonArgv(each.options));
    EXPECT_EQ(process->Finish(absl::Seconds(60)), 1);
    ExpectMentions(process->Errors(), each.words);
  }
  EXPECT_EQ(cli().ctl().MustRun({"node", "list"}).json()["nodes"].size(), 2u);
}

// A worker of the other node that dies is named, replaced, and its engines fail: as at home.
// The lead opens the folder, on another node than the primary: nobody waits for what it refuses.
TEST_F(NodesTest, Export_IntoABadFolderOfTheLeadsNode_LeavesTheEngineReady) {
  Create("led", "3,0");
  for (const std::string folder :
       {Data().root + "/no/such", std::string("/etc/out"), Data().text.path, Data().root}) {
    const CtlResult refused = cli().ctl().Run({"export", "led", folder}, absl::Seconds(20));
    EXPECT_EQ(refused.exit, 1);
    ExpectMentions(refused.errors, {"DIR=" + folder, "node b"});
    EXPECT_EQ(cli().State("led"), "READY");
  }
  EXPECT_EQ(cli().Train("led", Text(1)).size(), 1u);
  cli().Delete("led");
}

TEST_F(NodesTest, Kill_AWorkerOfTheOtherNode_FailsItsEngines) {
  Create("hit", "1-2");
  Create("other", "0,3");
  const pid_t pid = daemon().WorkerPid(2);
  ASSERT_GT(pid, 0);
  ASSERT_EQ(kill(pid, SIGKILL), 0);
  EXPECT_TRUE(WaitUntil(absl::Seconds(20), [&] { return cli().State("hit") == "FAILED"; }));
  ExpectMentions(cli().Describe("hit").value("error", ""), {"rank 2", "SIGKILL"});
  EXPECT_EQ(cli().State("other"), "READY");
  EXPECT_TRUE(daemon().WaitForRestart(2, pid));
  cli().Delete("hit");
  Create("hit", "1-2");
  EXPECT_EQ(cli().Train("hit", Text(1)).size(), 1u);
}

// b sees files that a does not, and the other way round; each judges by its own roots.
TEST(NodesRootsTest, Paths_AreJudgedWhereTheyAreOpened) {
  DaemonOptions options;
  options.ranks = 1;
  options.data_root = NewFolder("roots-a");
  const auto a = Daemon::Start(options);
  ASSERT_NE(a, nullptr);
  options.node = "b";
  options.join = a->address();
  options.data_root = NewFolder("roots-b");
  const auto b = Daemon::Start(options);
  ASSERT_NE(b, nullptr);
  const Cli cli(*a);
  const std::string model = b->data_root() + "/model";
  WriteSmallLlama(model, SmallLlama{}, 1);
  const std::string text = b->data_root() + "/text.u16.bin";
  WriteTokens(text, RandomTokens(10 * kSeq + 1, SmallLlama{}.vocab, 2));
  const std::string elsewhere = a->data_root() + "/text.u16.bin";
  WriteTokens(elsewhere, RandomTokens(10 * kSeq + 1, SmallLlama{}.vocab, 2));

  cli.Create("e", "1", model, OptimizerFlags(AdamW()));
  EXPECT_EQ(cli.Train("e", {text, 2, 2, kSeq, {}}).size(), 2u);
  const CtlResult outside = cli.ctl().Run(TrainCommand("e", {elsewhere, 1, 2, kSeq, {}}));
  EXPECT_EQ(outside.exit, 1);
  ExpectMentions(outside.errors, {"node b", "--data=" + elsewhere, b->data_root()});
  EXPECT_EQ(cli.State("e"), "READY");
  const CtlResult moved = cli.ctl().Run({"engine", "relayout", "e", "--ranks=0-1"});
  EXPECT_EQ(moved.exit, 1) << "rank 0 is on a, which has no such root";
  ExpectMentions(moved.errors, {"--model=" + model, a->data_root()});
  EXPECT_EQ(cli.Train("e", {text, 1, 2, kSeq, {}})[0].step, 3);
  cli.ctl().MustRun({"export", "e", b->data_root() + "/out"});
  EXPECT_TRUE(std::filesystem::exists(b->data_root() + "/out/model.safetensors"));
  EXPECT_EQ(cli.ctl().Run({"export", "e", a->data_root() + "/out"}).exit, 1);
  cli.Delete("e");
}

// Whatever the addresses are called.
TEST(NodesAddressTest, Loopback_OfEveryKind_Works) {
  for (const std::string host : {"[::1]", "localhost"}) {
    DaemonOptions options;
    options.ranks = 1;
    options.listen = absl::StrCat(host, ":0");
    const auto a = Daemon::Start(options);
    ASSERT_NE(a, nullptr);
    options.node = "b";
    options.join = a->address();
    const auto b = Daemon::Start(options);
    ASSERT_NE(b, nullptr);
    const Cli cli(*a);
    cli.Create("e", "0-1", kMlpSpec, OptimizerFlags(AdamW()));
    cli.Relayout("e", "1");
    cli.Delete("e");
  }
}

TEST(NodesAddressTest, Join_WithoutAPrimary_EndsWithASignal) {
  DaemonOptions options;
  options.join = "127.0.0.1:1";
  options.data_root = NewFolder("data");
  options.state_dir = NewFolder("state");
  const auto process = Process::Start(DaemonArgv(options));
  EXPECT_FALSE(process->Wait(absl::Seconds(1)).has_value()) << "it tries for 30 s";
  process->Signal(SIGTERM);
  EXPECT_EQ(process->Finish(absl::Seconds(30)), 0) << process->Errors();
}

}  // namespace
}  // namespace regroup::harness
