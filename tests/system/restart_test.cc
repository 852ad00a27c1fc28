// The primary ends and comes back. What other nodes' ranks hold goes on as if nothing had happened.
#include <gtest/gtest.h>
#include <signal.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/system/cli.h"
#include "tests/system/fixtures.h"

namespace regroup::harness {
namespace {

using Steps = std::vector<StepRecord>;

constexpr int64_t kForever = 1000000;
constexpr absl::Duration kFound = absl::Seconds(60);  // from a restart to a READY engine

// Big enough that a move takes a while.
constexpr char kBigMlp[] = "mlp:in=8,hidden=512,layers=8,out=4";

TrainArgs Text(int64_t steps) { return {Data().text.path, steps, 4, kSeq, {}}; }

void ExpectMentions(const std::string& text, const std::vector<std::string>& words) {
  for (const std::string& word : words) {
    EXPECT_NE(text.find(word), std::string::npos) << "\"" << word << "\" is not in: " << text;
  }
}

class RestartTest : public ::testing::Test {
 protected:
  void StartPrimary(int ranks) {
    primary_.ranks = ranks;
    primary_.data_root = Data().root;
    if (primary_.state_dir.empty()) primary_.state_dir = NewFolder("state");
    a_ = Daemon::Start(primary_);
    ASSERT_NE(a_, nullptr);
    primary_.listen = a_->address();
    cli_ = std::make_unique<Cli>(*a_);
  }

  std::unique_ptr<Daemon> Join(const std::string& node, int ranks) const {
    DaemonOptions options;
    options.node = node;
    options.join = a_->address();
    options.ranks = ranks;
    options.data_root = Data().root;
    return Daemon::Start(options);
  }

  void End(int signal) {
    EXPECT_EQ(a_->Stop(signal), signal == SIGKILL ? 128 + SIGKILL : 0) << a_->process().Errors();
    a_ = nullptr;
  }

  void Create(const std::string& name, const std::string& ranks) const {
    cli_->Create(name, ranks, Data().untied.folder, OptimizerFlags(AdamW()));
  }

  bool WaitForState(const std::string& engine, const std::string& state) const {
    return WaitUntil(kFound, [&] { return cli_->State(engine) == state; });
  }

  DaemonOptions primary_;
  std::unique_ptr<Daemon> a_;
  std::unique_ptr<Cli> cli_;
};

TEST_F(RestartTest, PrimaryWithoutWorkers_KilledInTraining_NoStepIsLostOrDoneTwice) {
  StartPrimary(0);
  const auto b = Join("b", 2);
  const auto c = Join("c", 1);
  ASSERT_TRUE(b != nullptr && c != nullptr);
  Create("e", "0-2");
  const auto train = cli_->ctl().Start(TrainCommand("e", Text(kForever)));
  ASSERT_TRUE(WaitUntil(absl::Seconds(60), [&] { return train->OutputLines().size() > 2; }));
  End(SIGKILL);
  train->Finish(absl::Seconds(60));
  const Steps seen = ParseSteps({0, train->Output(), ""});

  StartPrimary(0);
  ASSERT_TRUE(WaitForState("e", "READY")) << cli_->Row("e");
  const nlohmann::json row = cli_->Row("e");
  const auto step = row["step"].get<int64_t>();
  EXPECT_GE(step, seen.back().step);
  EXPECT_LE(step, seen.back().step + 2) << "the one under way, and one whose line was not read";
  EXPECT_EQ(row["dataPosition"], step);
  EXPECT_EQ(row["weightsVersion"], step + 1);
  Steps more = cli_->Train("e", Text(3));
  EXPECT_EQ(more[0].step, step + 1);
  const TensorMap weights = cli_->Export("e");
  const nlohmann::json operations = cli_->ctl().MustRun({"operation", "list"}).json()["operations"];
  int restarted = 0;
  for (const nlohmann::json& operation : operations) {
    EXPECT_TRUE(operation["done"]);
    if (operation["error"] == "the primary restarted") ++restarted;
  }
  EXPECT_EQ(restarted, 1) << operations;

  // The same without a restart, to the last bit.
  cli_->Delete("e");
  Create("e", "0-2");
  const Steps undisturbed = cli_->Train("e", Text(step + 3));
  EXPECT_EQ(Steps(undisturbed.begin(), undisturbed.begin() + static_cast<int64_t>(seen.size())),
            seen);
  EXPECT_EQ(Steps(undisturbed.end() - 3, undisturbed.end()), more);
  EXPECT_TRUE(Differences(cli_->Export("e"), weights).empty());
}

// Whoever presses Ctrl-C twice does not wait for a step of another node; the step goes on there.
TEST_F(RestartTest, PrimaryWithoutWorkers_StoppedTwiceInAStep_TheEngineIsWhole) {
  StartPrimary(0);
  const auto b = Join("b", 2);
  ASSERT_NE(b, nullptr);
  std::vector<std::string> flags = OptimizerFlags(AdamW());
  flags.push_back("--timeout=600s");
  cli_->Create("e", "0-1", Data().untied.folder, flags);
  const auto train = cli_->ctl().Start(TrainCommand("e", Text(kForever)));
  ASSERT_TRUE(WaitUntil(absl::Seconds(60), [&] { return train->OutputLines().size() > 2; }));
  const pid_t worker = a_->WorkerPid(1);
  ASSERT_GT(worker, 0);
  ASSERT_EQ(kill(worker, SIGSTOP), 0);  // the step lasts
  ASSERT_EQ(kill(a_->process().pid(), SIGTERM), 0);
  EXPECT_TRUE(WaitUntil(absl::Seconds(60), [&] {
    return a_->process().Errors().find(": stopping") != std::string::npos;
  }));
  End(SIGTERM);
  ASSERT_EQ(kill(worker, SIGCONT), 0);
  train->Finish(absl::Seconds(60));
  const Steps seen = ParseSteps({0, train->Output(), ""});

  StartPrimary(0);
  ASSERT_TRUE(WaitForState("e", "READY")) << cli_->Row("e");
  const auto step = cli_->Row("e")["step"].get<int64_t>();
  EXPECT_GE(step, seen.back().step);
  EXPECT_LE(step, seen.back().step + 2) << "the one under way, and one whose line was not read";
  EXPECT_EQ(cli_->Train("e", Text(2))[0].step, step + 1);
  EXPECT_EQ(a_->WorkerPid(1), worker);
}

TEST_F(RestartTest, PrimaryWithWorkers_ItsOwnRanksAreLostTheOthersGoOn) {
  StartPrimary(2);
  const auto b = Join("b", 2);
  ASSERT_NE(b, nullptr);
  Create("near", "0-1");
  Create("across", "1-2");
  Create("far", "3,2");
  cli_->CreateRollout("rollout", "3", Data().untied.folder);
  const Steps first = cli_->Train("far", Text(2));
  cli_->Sync("far", "rollout");
  const std::vector<Generated> before = cli_->Generate("rollout", {{1, 2, 3}}, 4);
  End(SIGTERM);
  ASSERT_EQ(kill(b->process().pid(), SIGSTOP), 0);  // it has not joined again

  StartPrimary(2);
  ExpectMentions(cli_->Row("far").value("error", ""), {"node b"});
  EXPECT_NE(cli_->State("far"), "READY");
  const CtlResult early = cli_->ctl().Run(TrainCommand("far", Text(1)));
  EXPECT_NE(early.exit, 0);
  ExpectMentions(early.errors, {"far", "node b has not joined again"});
  for (const char* engine : {"near", "across"}) {
    EXPECT_TRUE(WaitForState(engine, "FAILED"));
    ExpectMentions(cli_->Row(engine).value("error", ""), {"rank"});
  }
  ASSERT_EQ(kill(b->process().pid(), SIGCONT), 0);
  ASSERT_TRUE(WaitForState("far", "READY")) << cli_->Row("far");
  ASSERT_TRUE(WaitForState("rollout", "READY")) << cli_->Row("rollout");
  EXPECT_EQ(cli_->Row("far")["step"], 2);
  EXPECT_EQ(cli_->Row("rollout")["weightsVersion"], 3);
  const std::vector<Generated> after = cli_->Generate("rollout", {{1, 2, 3}}, 4);
  EXPECT_EQ(after[0].tokens, before[0].tokens);
  EXPECT_EQ(after[0].logprobs, before[0].logprobs);
  ReferenceRun reference(Data().untied, Data().text, AdamW());
  ExpectSteps(first, reference.Train(2, 4));
  ExpectSteps(cli_->Train("far", Text(1)), reference.Train(1, 4), 3);
  // It is an engine like any other.
  cli_->Delete("across");
  cli_->Relayout("far", "0-2");
  ExpectSteps(cli_->Train("far", Text(1)), reference.Train(1, 4), 4);
  EXPECT_EQ(cli_->Describe("far")["generation"], 2);
}

// At whatever moment of a move the primary dies, the engine lies in one layout or the other.
TEST_F(RestartTest, KilledInARelayout_TheEngineIsWhole) {
  StartPrimary(0);
  const auto b = Join("b", 2);
  const auto c = Join("c", 2);
  ASSERT_TRUE(b != nullptr && c != nullptr);
  cli_->Create("e", "0-1", kBigMlp, OptimizerFlags(AdamW()));
  const TrainArgs rows = {Data().mlp_path, 1, 8, 0, {}};
  cli_->Train("e", rows);
  std::string here = "0-1";
  std::string there = "1-3";
  int64_t steps = 1;
  for (const char* phase : {"prepare", "move", "commit"}) {
    if (HasFailure()) break;
    const auto move = cli_->ctl().Start({"engine", "relayout", "e", "--ranks=" + there});
    cli_->AwaitPhase("e", phase, *move);
    End(SIGKILL);
    move->Finish(absl::Seconds(60));
    StartPrimary(0);
    ASSERT_TRUE(WaitForState("e", "READY")) << cli_->Row("e");
    const bool moved =
        cli_->Ranks("e") != (here == "0-1" ? std::vector<int>{0, 1} : std::vector<int>{1, 2, 3});
    if (moved) std::swap(here, there);
    EXPECT_EQ(cli_->Train("e", rows)[0].step, ++steps);
  }
  // Ranks that do not hold it hold nothing of it.
  cli_->Delete("e");
  cli_->Create("e", "0-3", kBigMlp, OptimizerFlags(AdamW()));
  EXPECT_EQ(cli_->Train("e", rows)[0].step, 1);
}

// By mistake: what the other nodes' ranks hold waits for the right one.
TEST_F(RestartTest, WithAnotherStateFolder_TheEnginesOfOthersStay) {
  StartPrimary(0);
  const auto b = Join("b", 2);
  ASSERT_NE(b, nullptr);
  Create("e", "0-1");
  ASSERT_EQ(cli_->Train("e", Text(2)).size(), 2u);
  End(SIGTERM);
  const std::string right = primary_.state_dir;
  primary_.state_dir = NewFolder("wrong");
  StartPrimary(0);
  EXPECT_TRUE(WaitUntil(kFound, [&] {
    return b->process().Errors().find("belongs to another cluster") != std::string::npos;
  })) << b->process().Errors();
  EXPECT_TRUE(cli_->EngineNames().empty());
  End(SIGTERM);
  primary_.state_dir = right;
  StartPrimary(0);
  ASSERT_TRUE(WaitForState("e", "READY")) << cli_->Row("e");
  EXPECT_EQ(cli_->Train("e", Text(1))[0].step, 3);
}

TEST_F(RestartTest, OtherRanksThanBefore_AreRefusedWhileNodesKnowThem) {
  StartPrimary(1);
  auto b = Join("b", 1);
  ASSERT_NE(b, nullptr);
  b = nullptr;
  End(SIGTERM);
  DaemonOptions other = primary_;
  other.ranks = 2;
  const auto process = Process::Start(DaemonArgv(other));
  EXPECT_EQ(process->Finish(absl::Seconds(60)), 1);
  ExpectMentions(process->Errors(), {"--ranks=2", "node a has rank 0"});
  StartPrimary(1);
  const nlohmann::json nodes = cli_->ctl().MustRun({"node", "list"}).json()["nodes"];
  ASSERT_EQ(nodes.size(), 2u);
  EXPECT_EQ(nodes[1]["state"], "LOST");
  EXPECT_EQ(nodes[1]["ranks"], std::vector<int>{1});
  b = Join("b", 1);
  ASSERT_NE(b, nullptr);
  cli_->Create("e", "0-1", kMlpSpec, OptimizerFlags(AdamW()));
}

}  // namespace
}  // namespace regroup::harness
