#include "tests/system/daemon_kill.h"

#include <signal.h>

#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/system/fault_grid.h"

namespace regroup::harness {
namespace {

constexpr int kTries = 10;

TrainArgs Text(int64_t steps) { return {Data().text.path, steps, 4, kSeq, {}}; }

}  // namespace

std::string NameOf(const DaemonKill& kill) { return absl::StrCat(kill.operation, "_", kill.phase); }

void PrintTo(const DaemonKill& kill, std::ostream* out) { *out << NameOf(kill); }

bool DaemonKillTest::TryToHit(const DaemonKill& kill) {
  DaemonOptions options;
  options.ranks = 3;
  options.data_root = Data().root;
  options.state_dir = NewFolder("state");
  auto daemon = Daemon::Start(options);
  if (daemon == nullptr) return true;
  {
    const Cli cli(*daemon);
    const auto client = *Client::Connect(daemon->address());
    const std::string kind = kill.operation == "trainerGenerate" ? "generate" : kill.operation;
    std::unique_ptr<Process> train;
    std::unique_ptr<Process> process;
    bool seen = false;
    for (int i = 0; i < kTries && !seen; ++i) {
      for (const std::string& name : cli.EngineNames()) cli.Delete(name);
      PrepareFor(kill.operation, SIGKILL, cli);
      if (kill.phase == "cancel") {
        train = cli.ctl().Start(CommandOf("train", SIGKILL));
        EXPECT_TRUE(WaitUntil(absl::Seconds(60), [&] { return !train->OutputLines().empty(); }));
      }
      if (IsShort(kill.phase)) {
        EXPECT_EQ(::kill(daemon->WorkerPid(2), SIGSTOP), 0);
      }
      process = cli.ctl().Start(CommandOf(kill.operation, SIGKILL));
      seen = SeePhase(*client, kind, kill.phase, *process);
    }
    if (!seen) return false;
    // Workers that it leaves behind fail the test in here.
    EXPECT_EQ(daemon->Stop(SIGKILL), 128 + SIGKILL);
    const int code = process->Finish(absl::Seconds(40));
    if (code == 0) return false;
    EXPECT_EQ(code, 3) << "the server is not there: " << process->Errors();
    EXPECT_NE(process->Errors().find(daemon->address()), std::string::npos) << process->Errors();
    if (train != nullptr) {
      EXPECT_EQ(train->Finish(absl::Seconds(40)), 3) << train->Errors();
    }
  }
  auto again = Daemon::Start(options);
  if (again == nullptr) return true;
  const Cli cli(*again);
  for (const std::string& name : cli.EngineNames()) {
    EXPECT_TRUE(WaitUntil(absl::Seconds(30), [&] { return cli.State(name) == "FAILED"; }))
        << "its ranks are new: " << cli.Row(name);
    EXPECT_NE(cli.Row(name).value("error", "").find("rank"), std::string::npos) << cli.Row(name);
    cli.Delete(name);
  }
  for (const nlohmann::json& each : cli.ctl().MustRun({"operation", "list"}).json()["operations"]) {
    EXPECT_TRUE(each["done"]) << each;
  }
  PrepareFor("train", SIGKILL, cli);
  ReferenceRun reference(SizableLlama(), Data().text, AdamW());
  ExpectSteps(cli.Train("hit", Text(2)), reference.Train(2, 4));
  return true;
}

TEST_P(DaemonKillTest, Kill_LeavesNothingAndTheNextOneServes) {
  bool hit = false;
  for (int tries = 0; tries < kTries && !hit && !HasFailure(); ++tries) hit = TryToHit(GetParam());
  EXPECT_TRUE(hit) << "the phase was never hit";
}

}  // namespace regroup::harness
