// What starts daemons elsewhere: the systemd unit, and the Slurm script on a cluster that is
// played.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "tests/system/process.h"

namespace regroup::harness {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(60);
constexpr char kAnalyze[] = "/usr/bin/systemd-analyze";

// The unit as it would be installed, but with the binary of this build.
std::string InstalledUnit() {
  std::string path = NewFolder("systemd") + "/regroupd.service";
  WriteFile(path, absl::StrReplaceAll(ReadFile(Runfile("deploy/regroupd.service")),
                                      {{"/opt/regroup/bin/regroupd", Runfile("daemon/regroupd")}}));
  return path;
}

TEST(SystemdUnit, Verifies) {
  if (!std::filesystem::exists(kAnalyze)) GTEST_SKIP() << "there is no systemd-analyze here";
  const auto verify = Process::Start({kAnalyze, "verify", "--man=no", InstalledUnit()});
  EXPECT_EQ(verify->Finish(kPatience), 0) << verify->Errors();
  EXPECT_EQ(verify->Output() + verify->Errors(), "");
}

TEST(SystemdUnit, IsHardened) {
  if (!std::filesystem::exists(kAnalyze)) GTEST_SKIP() << "there is no systemd-analyze here";
  // 2.0 on a scale from 0 to 10, on which a unit without any setting has 9.6.
  const auto security = Process::Start(
      {kAnalyze, "security", "--offline=true", "--threshold=20", "--no-pager", InstalledUnit()});
  const int code = security->Finish(kPatience);
  if (absl::StrContains(security->Errors(), "unrecognized option")) {
    GTEST_SKIP() << "this systemd-analyze judges no unit that is not installed";
  }
  EXPECT_EQ(code, 0) << security->Output() << security->Errors();
}

class SlurmTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = NewFolder("slurm");
    Script("scontrol",
           "[[ \"$1 $2 $3\" == \"show hostnames n[7-9]\" ]] && printf 'n7\\nn8\\nn9\\n'\n");
    // As srun does: a task on each node, in no order, and signals are passed on.
    Script("srun",
           "printf '%s\\n' \"$@\" >\"$PLAY/srun.args\"\n"
           "while [[ $1 == --* ]]; do shift; done\n"
           "for node in n9 n7 n8; do SLURMD_NODENAME=$node \"$@\" & done\n"
           "trap 'kill -TERM $(jobs -p)' TERM\n"
           "touch \"$PLAY/srun.ready\"\n"
           "while [[ -n $(jobs -pr) ]]; do\n"
           "  kill -0 $PPID 2>/dev/null || kill $(jobs -p)\n"
           "  sleep 0.05\n"
           "done\n");
    Script("regroupd",
           "trap 'echo stopped >\"$PLAY/$SLURMD_NODENAME.end\"; exit 0' TERM\n"
           "printf '%s\\n' \"$@\" >\"$PLAY/$SLURMD_NODENAME.part\"\n"
           "mv \"$PLAY/$SLURMD_NODENAME.part\" \"$PLAY/$SLURMD_NODENAME.flags\"\n"
           "while kill -0 $PPID 2>/dev/null; do sleep 0.05; done\n");
  }

  void Script(const std::string& name, const std::string& text) {
    const std::string path = folder_ + "/" + name;
    WriteFile(path, "#!/usr/bin/env bash\n" + text);
    ASSERT_EQ(chmod(path.c_str(), 0700), 0);
  }

  std::unique_ptr<Process> Start(const std::vector<std::string>& environment) {
    std::vector<std::string> argv = {"/usr/bin/env",
                                     absl::StrCat("PATH=", folder_, ":/usr/bin:/bin"),
                                     "PLAY=" + folder_,
                                     "REGROUP_BIN=" + folder_,
                                     "REGROUP_STATE=" + folder_ + "/state",
                                     "SLURM_JOB_ID=17",
                                     "SLURM_JOB_NODELIST=n[7-9]"};
    argv.insert(argv.end(), environment.begin(), environment.end());
    argv.insert(argv.end(), {"bash", Runfile("deploy/regroupd.sbatch")});
    return Process::Start(argv);
  }

  std::vector<std::string> Flags(const std::string& node) const {
    return SplitLines(ReadFile(absl::StrCat(folder_, "/", node, ".flags")));
  }

  std::string folder_;
};

TEST_F(SlurmTest, ADaemonANode_TheFirstIsThePrimary) {
  const auto job = Start({"REGROUP_RANKS=4", "REGROUP_DATA_ROOT=/shared/data"});
  for (const char* node : {"n7", "n8", "n9"}) {
    EXPECT_TRUE(WaitUntil(kPatience, [&] { return !Flags(node).empty(); })) << job->Errors();
  }
  EXPECT_TRUE(WaitUntil(kPatience, [&] {
    return std::filesystem::exists(folder_ + "/srun.ready");
  })) << job->Errors();
  const auto common = [&](const std::string& node, const std::string& first) {
    return std::vector<std::string>{"--node=" + node,
                                    absl::StrCat("--listen=", node, ":7070"),
                                    "--insecure",
                                    "--ranks=4",
                                    "--first-rank=" + first,
                                    absl::StrCat("--state-dir=", folder_, "/state/", node),
                                    "--data-root=/shared/data"};
  };
  EXPECT_EQ(Flags("n7"), common("n7", "0"));
  for (const auto& [node, first] : {std::pair("n8", "4"), std::pair("n9", "8")}) {
    std::vector<std::string> expected = common(node, first);
    expected.emplace_back("--join=n7:7070");
    EXPECT_EQ(Flags(node), expected);
  }
  EXPECT_EQ(job->OutputLines().at(0), "REGROUP_SERVER=n7:7070");

  job->Signal(SIGTERM);
  EXPECT_EQ(job->Finish(kPatience), 0) << job->Errors();
  for (const char* node : {"n7", "n8", "n9"}) {
    EXPECT_EQ(ReadFile(absl::StrCat(folder_, "/", node, ".end")), "stopped\n") << node;
  }
}

TEST_F(SlurmTest, WrongNumber_IsRefusedNamingIt) {
  const auto job = Start({"REGROUP_RANKS=x"});
  EXPECT_EQ(job->Finish(kPatience), 2);
  EXPECT_TRUE(absl::StrContains(job->Errors(), "REGROUP_RANKS=x")) << job->Errors();
  EXPECT_FALSE(std::filesystem::exists(folder_ + "/srun.args"));
}

TEST_F(SlurmTest, OutsideAJob_SaysSo) {
  const auto job = Process::Start(
      {"/usr/bin/env", "-u", "SLURM_JOB_ID", "bash", Runfile("deploy/regroupd.sbatch")});
  EXPECT_NE(job->Finish(kPatience), 0);
  EXPECT_TRUE(absl::StrContains(job->Errors(), "a script for sbatch")) << job->Errors();
}

}  // namespace
}  // namespace regroup::harness
