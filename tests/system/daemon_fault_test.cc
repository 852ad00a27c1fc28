// However a daemon ends, nothing of it is left; and what keeps it from starting is said.
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/system/cli.h"
#include "tests/system/fixtures.h"

namespace regroup::harness {
namespace {

constexpr int64_t kForever = 1000000;

class DaemonFaultTest : public ::testing::Test {
 protected:
  static std::unique_ptr<Daemon> Start(int ranks, const std::string& state_dir = "") {
    DaemonOptions options;
    options.ranks = ranks;
    options.data_root = Data().root;
    options.state_dir = state_dir;
    return Daemon::Start(options);
  }

  // An engine on every rank, in training.
  static std::unique_ptr<Process> StartTraining(const Daemon& daemon, const std::string& ranks) {
    const Cli cli(daemon);
    cli.Create("e", ranks, Data().untied.folder, OptimizerFlags(AdamW()));
    auto train = cli.ctl().Start(TrainCommand("e", {Data().text.path, kForever, 4, kSeq, {}}));
    EXPECT_TRUE(WaitUntil(absl::Seconds(30), [&] { return !train->OutputLines().empty(); }))
        << train->Errors();
    return train;
  }

  // A daemon that must not start: exits by itself, says why on stderr, prints no address.
  static std::string ExpectRefused(const std::vector<std::string>& argv) {
    const auto process = Process::Start(argv);
    EXPECT_NE(process->Finish(absl::Seconds(30)), 0);
    EXPECT_EQ(process->Output().find("listening on"), std::string::npos);
    return process->Errors();
  }
};

TEST_F(DaemonFaultTest, Sigkill_WhileTraining_TakesEverythingAlong) {
  const auto daemon = Start(3);
  ASSERT_NE(daemon, nullptr);
  const auto train = StartTraining(*daemon, "0-2");
  EXPECT_GE(daemon->Processes().size(), 4u);
  EXPECT_EQ(daemon->Stop(SIGKILL), 128 + SIGKILL);
  EXPECT_EQ(train->Finish(absl::Seconds(40)), 3) << train->Errors();
  EXPECT_NE(train->Errors().find(daemon->address()), std::string::npos) << train->Errors();
}

// What a killed daemon could not remove, the next one does.
TEST_F(DaemonFaultTest, Sigkill_ThenStartAgain_OnTheSameStateFolder) {
  const std::string state_dir = NewFolder("state");
  std::unique_ptr<Daemon> previous;
  for (int round = 0; round < 3; ++round) {
    auto daemon = Start(2, state_dir);
    ASSERT_NE(daemon, nullptr);
    if (previous != nullptr) {
      EXPECT_FALSE(previous->held_paths().empty());
      for (const std::string& path : previous->held_paths()) {
        EXPECT_FALSE(std::filesystem::exists(path)) << path;
        EXPECT_FALSE(std::filesystem::exists(std::filesystem::path(path).parent_path())) << path;
      }
    }
    const Cli cli(*daemon);
    for (const std::string& name : cli.EngineNames()) {
      EXPECT_EQ(cli.State(name), "FAILED") << "its ranks are new";
      cli.Delete(name);
    }
    cli.Create("e", "0-1", Data().untied.folder, OptimizerFlags(AdamW()));
    EXPECT_EQ(cli.Train("e", {Data().text.path, 1, 4, kSeq, {}})[0].step, 1);
    EXPECT_EQ(daemon->Stop(SIGKILL), 128 + SIGKILL);
    previous = std::move(daemon);
  }
}

TEST_F(DaemonFaultTest, SigtermAndSigint_EndItCleanly) {
  for (const int signal : {SIGTERM, SIGINT}) {
    const auto daemon = Start(2);
    ASSERT_NE(daemon, nullptr);
    Cli(*daemon).Create("e", "0-1", kMlpSpec, {"--lr=0.1"});
    EXPECT_EQ(daemon->Stop(signal), 0);
  }
}

TEST_F(DaemonFaultTest, Sigterm_WhileTraining_EndsTheClientToo) {
  const auto daemon = Start(2);
  ASSERT_NE(daemon, nullptr);
  const auto train = StartTraining(*daemon, "0-1");
  EXPECT_EQ(daemon->Stop(SIGTERM), 0);
  const int code = train->Finish(absl::Seconds(40));
  EXPECT_TRUE(code == 1 || code == 3) << code << train->Errors();
}

TEST_F(DaemonFaultTest, Sigterm_WithAStoppedWorker_DoesNotWaitForIt) {
  const auto daemon = Start(2);
  ASSERT_NE(daemon, nullptr);
  const auto train = StartTraining(*daemon, "0-1");
  ASSERT_EQ(kill(daemon->WorkerPid(1), SIGSTOP), 0);
  EXPECT_EQ(daemon->Stop(SIGTERM), 0);
  const int code = train->Finish(absl::Seconds(40));
  EXPECT_TRUE(code == 1 || code == 3) << code << train->Errors();
}

TEST_F(DaemonFaultTest, Sigkill_WithAStoppedWorker_TakesItAlong) {
  const auto daemon = Start(2);
  ASSERT_NE(daemon, nullptr);
  ASSERT_EQ(kill(daemon->WorkerPid(0), SIGSTOP), 0);
  EXPECT_EQ(daemon->Stop(SIGKILL), 128 + SIGKILL);
}

TEST_F(DaemonFaultTest, Start_OnATakenPort_IsRefusedNamingIt) {
  const auto first = Start(1);
  ASSERT_NE(first, nullptr);
  DaemonOptions options;
  options.ranks = 1;
  options.data_root = Data().root;
  options.state_dir = NewFolder("state");
  options.listen = first->address();
  const std::string errors = ExpectRefused(DaemonArgv(options));
  EXPECT_NE(errors.find(first->address()), std::string::npos) << errors;
  EXPECT_EQ(Cli(*first).EngineNames().size(), 0u) << "the first one is unharmed";
}

TEST_F(DaemonFaultTest, Start_OnAStateFolderInUse_IsRefusedNamingIt) {
  const auto first = Start(1);
  ASSERT_NE(first, nullptr);
  DaemonOptions options;
  options.ranks = 1;
  options.data_root = Data().root;
  options.state_dir = first->state_dir();
  const std::string errors = ExpectRefused(DaemonArgv(options));
  EXPECT_NE(errors.find(first->state_dir()), std::string::npos) << errors;
}

// The port that others meet at by default is taken; here each engine meets at a port of its own.
TEST_F(DaemonFaultTest, Start_SeveralOnOneMachine_AllServe) {
  const int taken = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  ASSERT_GE(taken, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(29500);
  // Taken by somebody else is as good.
  if (bind(taken, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0) {
    EXPECT_EQ(listen(taken, 1), 0);
  }
  std::unique_ptr<Daemon> daemons[3];
  for (auto& daemon : daemons) daemon = Start(2);
  for (int round = 0; round < 3; ++round) {
    std::vector<std::unique_ptr<Process>> creations;
    for (const auto& daemon : daemons) {
      ASSERT_NE(daemon, nullptr);
      creations.push_back(
          daemon->ctl().Start({"engine", "create", absl::StrCat("e", round), "--ranks=0-1",
                               "--lr=0.1", absl::StrCat("--model=", kMlpSpec)}));
    }
    for (const auto& creation : creations) {
      EXPECT_EQ(creation->Finish(absl::Seconds(30)), 0) << creation->Errors();
    }
  }
  close(taken);
}

TEST_F(DaemonFaultTest, Start_WithoutRanks_ServesAndRefusesEngines) {
  const auto daemon = Start(0);
  ASSERT_NE(daemon, nullptr);
  const CtlResult result = daemon->ctl().Run(
      {"engine", "create", "e", "--ranks=0", "--lr=0.1", absl::StrCat("--model=", kMlpSpec)});
  EXPECT_EQ(result.exit, 1);
  EXPECT_NE(result.errors.find("--ranks"), std::string::npos) << result.errors;
}

TEST_F(DaemonFaultTest, Start_WithWrongFlags_IsRefusedNamingThem) {
  struct Wrong {
    std::string flag;
    std::vector<std::string> said;
  };
  const std::string file = NewFolder("root") + "/file";
  WriteFile(file, "");
  const std::vector<Wrong> table = {
      {"--ranks=-1", {"--ranks", "-1"}},
      {"--ranks=x", {"--ranks", "x"}},
      {"--ranks=100001", {"--ranks", "100001"}},
      {"--ranks=", {"--ranks"}},
      {"--listen=nonsense", {"--listen", "nonsense"}},
      {"--listen=127.0.0.1:99999", {"--listen", "99999"}},
      {"--listen=0.0.0.0:0", {"--listen", "--insecure"}},
      {"--node=-x", {"--node", "-x"}},
      {"--node=a/b", {"--node", "a/b"}},
      {"--device=tpu", {"--device", "tpu"}},
      {"--device=cuda", {"not available", "cuda"}},
      {"--join=127.0.0.1", {"--join", "port"}},
      {"--advertise=192.0.2.5", {"--advertise", "192.0.2.5", "not an address of this"}},
      {"--data-root=/nowhere/at/all", {"--data-root", "/nowhere/at/all"}},
      {"--data-root=" + file, {"--data-root", file}},
      {"--nonsense=1", {"--nonsense"}},
      {"surplus", {"surplus"}}};
  for (const Wrong& wrong : table) {
    const std::string name = wrong.flag.substr(0, wrong.flag.find('=') + 1);
    std::vector<std::string> argv = {Runfile("daemon/regroupd")};
    for (const std::string& flag :
         {std::string("--node=a"), std::string("--listen=127.0.0.1:0"), std::string("--ranks=1"),
          "--state-dir=" + NewFolder("state")}) {
      if (name.empty() || flag.rfind(name, 0) != 0) argv.push_back(flag);
    }
    argv.push_back(wrong.flag);
    const std::string errors = ExpectRefused(argv);
    for (const std::string& word : wrong.said) {
      EXPECT_NE(errors.find(word), std::string::npos) << wrong.flag << ": " << errors;
    }
  }
}

}  // namespace
}  // namespace regroup::harness
