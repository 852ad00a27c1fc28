// Daemons on two hosts, which network namespaces stand for.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/system/cli.h"
#include "tests/system/fixtures.h"
#include "tests/system/namespaces.h"

namespace regroup::harness {
namespace {

TrainArgs Text(int64_t steps) { return {Data().text.path, steps, 4, kSeq, {}}; }

class TwoHostsTest : public ::testing::Test {
 protected:
  // False where there are no namespaces: the test is skipped then.
  bool MakeHosts(const std::vector<std::string>& hosts_files = {}) {
    hosts_ = TwoHosts::Make(hosts_files, &why_not_);
    return hosts_ != nullptr;
  }

  std::unique_ptr<Daemon> Start(int host, const std::string& listen, const std::string& join = "",
                                const Flags& flags = {}) const {
    DaemonOptions options;
    options.prefix = hosts_->In(host);
    options.node = host == 0 ? "a" : "b";
    options.listen = listen;
    options.join = join;
    options.ranks = 2;
    options.data_root = Data().root;
    options.flags = flags;
    options.flags.emplace_back("--insecure");
    return Daemon::Start(options);
  }

  // Starts a and b, which joins a by `name` of a's host.
  void StartBoth(const std::string& listen_a, const std::string& name, const std::string& listen_b,
                 const Flags& flags_b = {}) {
    a_ = Start(0, listen_a);
    ASSERT_NE(a_, nullptr);
    const std::string port = a_->address().substr(a_->address().rfind(':'));
    b_ = Start(1, listen_b, name + port, flags_b);
    ASSERT_NE(b_, nullptr);
    cli_ = std::make_unique<Cli>(*a_);
  }

  void Create(const std::string& name, const std::string& ranks) const {
    cli_->Create(name, ranks, Data().untied.folder, OptimizerFlags(AdamW()));
  }

  // The story with engines that lie across, in brief.
  void ExpectStory() const {
    Create("actor", "0-3");
    ReferenceRun reference(Data().untied, Data().text, AdamW());
    ExpectSteps(cli_->Train("actor", Text(2)), reference.Train(2, 4));
    cli_->Relayout("actor", "3,0");
    ExpectSteps(cli_->Train("actor", Text(1)), reference.Train(1, 4), 3);
    cli_->CreateRollout("rollout", "1-2", Data().untied.folder);
    cli_->Sync("actor", "rollout");
    const std::vector<Generated> outputs = cli_->Generate("rollout", {{1, 2, 3}, {4, 5}}, 4);
    ASSERT_EQ(outputs.size(), 2u);
    const TensorMap weights = cli_->Export("actor");
    ExpectGreedy({1, 2, 3}, outputs[0], Data().untied, weights);
    ExpectGreedy({4, 5}, outputs[1], Data().untied, weights);
    cli_->Delete("actor");
    cli_->Delete("rollout");
  }

  std::string NodeState(const std::string& node) const {
    const nlohmann::json list = cli_->ctl().MustRun({"node", "list"}).json();
    for (const nlohmann::json& row : list["nodes"]) {
      if (row["node"] == node) return row["state"];
    }
    return "";
  }

  std::unique_ptr<TwoHosts> hosts_;
  std::string why_not_;
  std::unique_ptr<Daemon> a_;
  std::unique_ptr<Daemon> b_;
  std::unique_ptr<Cli> cli_;
};

TEST_F(TwoHostsTest, EveryAddress_TheStory) {
  if (!MakeHosts()) GTEST_SKIP() << "no network namespaces here: " << why_not_;
  StartBoth("0.0.0.0:0", TwoHosts::kAddress[0], "0.0.0.0:0");
  const nlohmann::json nodes = cli_->ctl().MustRun({"node", "list"}).json()["nodes"];
  ASSERT_EQ(nodes.size(), 2u);
  EXPECT_EQ(nodes[1]["address"].get<std::string>().rfind(TwoHosts::kAddress[1], 0), 0u) << nodes;
  ExpectStory();
}

TEST_F(TwoHostsTest, Ipv6_TheStory) {
  if (!MakeHosts()) GTEST_SKIP() << "no network namespaces here: " << why_not_;
  StartBoth("[::]:0", absl::StrCat("[", TwoHosts::kAddress6[0], "]"),
            absl::StrCat("[", TwoHosts::kAddress6[1], "]:0"));
  ExpectStory();
}

// Each host's own name is its loopback address, as Debian's installer writes it.
TEST_F(TwoHostsTest, NamesThatAreLoopbackAtHome_TheStory) {
  if (!MakeHosts({"127.0.0.1 localhost\n127.0.1.1 host-a\n10.90.0.2 host-b\n",
                  "127.0.0.1 localhost\n127.0.1.1 host-b\n10.90.0.1 host-a\n"})) {
    GTEST_SKIP() << "no network namespaces here: " << why_not_;
  }
  StartBoth("host-a:0", "host-a", "host-b:0");
  ExpectStory();
  // What would not be reached is said at once.
  DaemonOptions options;
  options.prefix = hosts_->In(1);
  options.node = "c";
  options.join = "host-a:7070";
  options.data_root = Data().root;
  options.state_dir = NewFolder("state");
  const auto process = Process::Start(DaemonArgv(options));
  EXPECT_EQ(process->Finish(absl::Seconds(60)), 1);
  EXPECT_NE(process->Errors().find("--listen=127.0.0.1"), std::string::npos) << process->Errors();
}

// Nothing arrives, and nobody says so: silence alone makes the node LOST.
TEST_F(TwoHostsTest, CablePulled_TheNodeIsLostAndComesBack) {
  if (!MakeHosts()) GTEST_SKIP() << "no network namespaces here: " << why_not_;
  StartBoth("0.0.0.0:0", TwoHosts::kAddress[0], "0.0.0.0:0");
  Create("across", "1-2");
  Create("home", "0-1");
  const auto train = cli_->ctl().Start(TrainCommand("across", Text(1000000)));
  ASSERT_TRUE(WaitUntil(absl::Seconds(60), [&] { return !train->OutputLines().empty(); }));
  hosts_->SetCable(false);
  EXPECT_TRUE(WaitUntil(absl::Seconds(20), [&] { return NodeState("b") == "LOST"; }));
  EXPECT_TRUE(WaitUntil(absl::Seconds(20), [&] { return cli_->State("across") == "FAILED"; }));
  EXPECT_EQ(Collect(*train, absl::Seconds(60)).exit, 1);
  EXPECT_EQ(cli_->Train("home", Text(1)).size(), 1u) << "it lies on a alone";
  hosts_->SetCable(true);
  EXPECT_TRUE(WaitUntil(absl::Seconds(60), [&] { return NodeState("b") == "READY"; }));
  cli_->Delete("across");
  Create("across", "1-2");
  EXPECT_EQ(cli_->Train("across", Text(2)).size(), 2u);
}

}  // namespace
}  // namespace regroup::harness
