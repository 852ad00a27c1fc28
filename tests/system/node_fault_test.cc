// A node that dies, stands still or comes back.
#include <gtest/gtest.h>
#include <signal.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "tests/system/cli.h"
#include "tests/system/fixtures.h"

namespace regroup::harness {
namespace {

// Within which the loss of a node has to be known.
constexpr absl::Duration kReported = absl::Seconds(5);
constexpr int64_t kForever = 1000000;

TrainArgs Text(int64_t steps) { return {Data().text.path, steps, 4, kSeq, {}}; }

void ExpectMentions(const std::string& text, const std::vector<std::string>& words) {
  for (const std::string& word : words) {
    EXPECT_NE(text.find(word), std::string::npos) << "\"" << word << "\" is not in: " << text;
  }
}

class NodeFaultTest : public ::testing::Test {
 protected:
  void SetUp() override {
    a_ = StartNode("a", "", 2);
    ASSERT_NE(a_, nullptr);
    b_ = StartNode("b", a_->address(), 2);
    ASSERT_NE(b_, nullptr);
    cli_ = std::make_unique<Cli>(*a_);
  }

  static std::unique_ptr<Daemon> StartNode(const std::string& node, const std::string& join,
                                           int ranks, const std::string& listen = "127.0.0.1:0") {
    DaemonOptions options;
    options.node = node;
    options.join = join;
    options.ranks = ranks;
    options.listen = listen;
    options.data_root = Data().root;
    return Daemon::Start(options);
  }

  void Create(const std::string& name, const std::string& ranks) const {
    cli_->Create(name, ranks, Data().untied.folder, OptimizerFlags(AdamW()));
  }

  std::unique_ptr<Process> StartTraining(const std::string& name) const {
    auto train = cli_->ctl().Start(TrainCommand(name, Text(kForever)));
    EXPECT_TRUE(WaitUntil(absl::Seconds(30), [&] { return !train->OutputLines().empty(); }))
        << train->Errors();
    return train;
  }

  std::string NodeState(const std::string& node) const {
    const nlohmann::json list = cli_->ctl().MustRun({"node", "list"}).json();
    for (const nlohmann::json& row : list["nodes"]) {
      if (row["node"] == node) return row["state"];
    }
    return "";
  }

  bool WaitForFailure(const std::string& engine, absl::Duration deadline) const {
    return WaitUntil(deadline, [&] { return cli_->State(engine) == "FAILED"; });
  }

  std::unique_ptr<Daemon> a_;
  std::unique_ptr<Daemon> b_;
  std::unique_ptr<Cli> cli_;
};

TEST_F(NodeFaultTest, Sigkill_WhileTraining_FailsItsEnginesByName_AndTheNodeComesBack) {
  Create("idle", "2,0");
  Create("hit", "1-2");
  Create("other", "0-1");
  const auto hit = StartTraining("hit");
  const auto other = StartTraining("other");
  EXPECT_EQ(b_->Stop(SIGKILL), 128 + SIGKILL);
  ASSERT_TRUE(WaitUntil(kReported, [&] { return NodeState("b") == "LOST"; }));
  for (const char* engine : {"hit", "idle"}) {
    EXPECT_TRUE(WaitForFailure(engine, absl::Seconds(1)));
    ExpectMentions(cli_->Describe(engine).value("error", ""), {"rank 2"});
  }
  ExpectMentions(cli_->Describe("idle").value("error", ""), {"rank 2", "node b"});
  for (int rank : {2, 3}) {
    EXPECT_EQ(a_->RankRow(rank)["state"], "LOST");
    ExpectMentions(a_->RankRow(rank)["error"], {"node b"});
  }
  EXPECT_EQ(Collect(*hit, absl::Seconds(20)).exit, 1);
  EXPECT_EQ(cli_->State("other"), "READY");
  EXPECT_TRUE(other->Running());
  const CtlResult refused = cli_->ctl().Run(
      {"engine", "create", "no", "--ranks=4", std::string("--model=") + kMlpSpec, "--lr=0.1"});
  EXPECT_EQ(refused.exit, 1);
  ExpectMentions(refused.errors, {"rank 4", "0 to 3"});

  // As before, on another port: the ranks keep their numbers.
  b_ = StartNode("b", a_->address(), 2);
  ASSERT_NE(b_, nullptr);
  EXPECT_TRUE(WaitUntil(absl::Seconds(30), [&] { return NodeState("b") == "READY"; }));
  cli_->Delete("hit");
  Create("hit", "1-2");
  EXPECT_EQ(cli_->Train("hit", Text(2)).size(), 2u);
  other->Signal(SIGINT);
  EXPECT_EQ(Collect(*other).exit, 0);
}

// A daemon that stands still is lost; what its workers still hold when it goes on is dropped.
TEST_F(NodeFaultTest, Stopped_ThenContinued_IsLostAndEmptyAgain) {
  Create("e", "1-2");
  ASSERT_EQ(kill(b_->process().pid(), SIGSTOP), 0);
  EXPECT_TRUE(WaitForFailure("e", kReported));
  EXPECT_EQ(NodeState("b"), "LOST");
  ASSERT_EQ(kill(b_->process().pid(), SIGCONT), 0);
  EXPECT_TRUE(WaitUntil(absl::Seconds(30), [&] { return NodeState("b") == "READY"; }));
  EXPECT_EQ(cli_->State("e"), "FAILED");
  cli_->Delete("e");
  Create("e", "2,1");
  EXPECT_EQ(cli_->Train("e", Text(1)).size(), 1u);
}

TEST_F(NodeFaultTest, Sigterm_OfTheJoinedDaemon_LetsTheStepEnd) {
  Create("e", "2-3");
  const auto train = StartTraining("e");
  EXPECT_EQ(b_->Stop(SIGTERM), 0);
  EXPECT_EQ(Collect(*train, absl::Seconds(30)).exit, 1);
  EXPECT_TRUE(WaitForFailure("e", absl::Seconds(20)));
  EXPECT_TRUE(WaitUntil(absl::Seconds(20), [&] { return NodeState("b") == "LOST"; }));
}

}  // namespace
}  // namespace regroup::harness
