// What comes and goes leaves nothing behind in the daemon and its workers.
#include <gtest/gtest.h>
#include <signal.h>

#include <filesystem>
#include <iostream>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/client.h"
#include "tests/system/fixtures.h"

namespace regroup::harness {
namespace {

namespace fs = std::filesystem;

constexpr int kWarmUp = 20;
constexpr int64_t kAllowedBytes = 10 << 20;

// What a process holds of what the kernel counts.
struct Holdings {
  int descriptors = 0;
  int sockets = 0;
  int threads = 0;
  int shared_mappings = 0;  // of /dev/shm or a memfd
  int64_t bytes = 0;        // its own: pages of files are shared with whoever maps them
};

std::string Compare(const Holdings& old, const Holdings& now) {
  return absl::StrCat("descriptors ", old.descriptors, " to ", now.descriptors, ", sockets ",
                      old.sockets, " to ", now.sockets, ", shared mappings ", old.shared_mappings,
                      " to ", now.shared_mappings, ", threads ", old.threads, " to ", now.threads,
                      ", ", (now.bytes - old.bytes) / 1024, " KiB more");
}

int CountEntries(const std::string& folder) {
  std::error_code error;
  int count = 0;
  for (const auto& entry : fs::directory_iterator(folder, error)) count += entry.exists() ? 1 : 0;
  return count;
}

Holdings HoldingsOf(pid_t pid) {
  const std::string proc = absl::StrCat("/proc/", pid);
  Holdings holdings;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(proc + "/fd", error)) {
    ++holdings.descriptors;
    const std::string target = fs::read_symlink(entry.path(), error).string();
    holdings.sockets += absl::StartsWith(target, "socket:") ? 1 : 0;
  }
  holdings.threads = CountEntries(proc + "/task");
  for (const std::string& line : SplitLines(ReadFile(proc + "/maps"))) {
    const bool shared = absl::StrContains(line, "/dev/shm/") || absl::StrContains(line, "memfd:");
    holdings.shared_mappings += shared ? 1 : 0;
  }
  for (const std::string& line : SplitLines(ReadFile(proc + "/smaps_rollup"))) {
    if (!absl::StartsWith(line, "Pss_Anon:")) continue;
    int64_t kib = 0;
    std::istringstream(line.substr(9)) >> kib;
    holdings.bytes = kib * 1024;
  }
  return holdings;
}

// In bytes, from /proc/PID/status.
int64_t StatusBytes(pid_t pid, const std::string& field) {
  for (const std::string& line : SplitLines(ReadFile(absl::StrCat("/proc/", pid, "/status")))) {
    if (!absl::StartsWith(line, field + ":")) continue;
    int64_t kib = 0;
    std::istringstream(line.substr(field.size() + 1)) >> kib;
    return kib * 1024;
  }
  return 0;
}

class LeakTest : public FixtureTest {
 protected:
  static void SetUpTestSuite() { StartDaemonOnFixtures(3); }

  void SetUp() override {
    FixtureTest::SetUp();
    client_ = *Client::Connect(daemon().address());
  }

  // One life of an engine, on other ranks each time.
  void Live(int round) {
    static const std::vector<std::vector<int>> layouts = {{0, 1}, {1, 2}, {0, 1, 2}, {2}, {2, 0}};
    const std::vector<int>& ranks = layouts[round % layouts.size()];
    v1::CreateEngineRequest create;
    v1::EngineSpec& spec = *create.mutable_spec();
    spec.set_name("e");
    spec.set_role(v1::ROLE_TRAIN);
    spec.set_model(Data().untied.folder);
    *spec.mutable_layout()->mutable_ranks() = {ranks.begin(), ranks.end()};
    spec.mutable_optimizer()->set_name("sgd");
    spec.mutable_optimizer()->set_learning_rate(0.1);
    const auto created = client_->Finish(client_->CreateEngine(create));
    ASSERT_TRUE(created.ok()) << created.status();
    v1::TrainRequest train;
    train.set_name("e");
    train.set_data(Data().text.path);
    train.set_steps(1);
    train.set_batch(4);
    train.set_seq(kSeq);
    const absl::Status trained = client_->Train(train);
    ASSERT_TRUE(trained.ok()) << trained;
    v1::DeleteEngineRequest remove;
    remove.set_name("e");
    const auto deleted = client_->Finish(client_->DeleteEngine(remove));
    ASSERT_TRUE(deleted.ok()) << deleted.status();
  }

  static std::map<pid_t, Holdings> Look() {
    std::map<pid_t, Holdings> all;
    for (const pid_t pid : daemon().Processes()) all[pid] = HoldingsOf(pid);
    return all;
  }

  // What leaks grows by one or more a round. gRPC's pools of threads may grow by a few, whatever
  // the number of rounds. Connections close a moment after what they were for.
  static void ExpectNoMoreThan(const std::map<pid_t, Holdings>& before, int rounds,
                               int64_t allowed_bytes = kAllowedBytes) {
    for (const auto& [pid, old] : before) {
      Holdings now;
      EXPECT_TRUE(WaitUntil(absl::Seconds(60),
                            [&, pid = pid, old = old] {
                              now = HoldingsOf(pid);
                              return now.descriptors <= old.descriptors &&
                                     now.sockets <= old.sockets &&
                                     now.shared_mappings <= old.shared_mappings &&
                                     now.threads <= old.threads + rounds / 2 &&
                                     now.bytes <= old.bytes + allowed_bytes;
                            }))
          << "process " << pid << ": " << Compare(old, now);
      EXPECT_GT(now.descriptors, 0) << "it is gone";
      std::cout << "process " << pid << ": " << Compare(old, now) << "\n";
    }
    EXPECT_EQ(daemon().Processes().size(), before.size());
  }

  void LiveAndCompare(int rounds) {
    for (int round = 0; round < kWarmUp && !HasFailure(); ++round) Live(round);
    const auto before = Look();
    ASSERT_EQ(before.size(), 4u);
    for (int round = 0; round < rounds && !HasFailure(); ++round) Live(round);
    ExpectNoMoreThan(before, rounds);
  }

  std::unique_ptr<Client> client_;
};

TEST_F(LeakTest, CreateStepDelete_FortyTimes_LeavesNothing) { LiveAndCompare(40); }

// Of the target that is run on request.
TEST_F(LeakTest, CreateStepDelete_TwoHundredTimes_LeavesNothing) { LiveAndCompare(200); }

TEST_F(LeakTest, ClientsThatComeAndGo_LeaveNothing) {
  cli().Create("e", "0-1", Data().untied.folder, OptimizerFlags(AdamW()));
  const auto one = [&](int round) {
    const auto train = cli().ctl().Start(TrainCommand("e", {Data().text.path, 1000000, 4, kSeq}));
    EXPECT_TRUE(WaitUntil(absl::Seconds(30), [&] { return !train->OutputLines().empty(); }));
    train->Signal(round % 2 == 0 ? SIGKILL : SIGINT);
    train->Finish(absl::Seconds(30));
    EXPECT_TRUE(WaitUntil(absl::Seconds(30),
                          [&] { return cli().Describe("e").value("activity", "?").empty(); }));
  };
  for (int round = 0; round < 4; ++round) one(round);
  const auto before = Look();
  for (int round = 0; round < 100 && !HasFailure(); ++round) cli().ctl().MustRun({"status"});
  constexpr int kRounds = 20;
  for (int round = 0; round < kRounds && !HasFailure(); ++round) one(round);
  ExpectNoMoreThan(before, kRounds);
}

// An inference rank has a second copy of the weights while they come, so that nobody sees half of
// them; nobody has more, and nothing stays.
TEST_F(LeakTest, Sync_ManyTimes_TakesOneCopyAtATimeAndLeavesNothing) {
  SmallLlama shape;
  shape.vocab = 2048;
  shape.hidden = 512;
  shape.layers = 6;
  shape.head_dim = 128;
  shape.intermediate = 1024;
  int64_t bytes = 0;
  for (const auto& entry : WriteSmallLlama(DataPath("sizable"), shape, 31)) {
    bytes += static_cast<int64_t>(entry.second.bytes.size());
  }
  cli().Create("actor", "0-1", DataPath("sizable"), OptimizerFlags(AdamW()));
  cli().CreateRollout("rollout", "1-2", DataPath("sizable"));
  for (int round = 0; round < 5; ++round) cli().Sync("actor", "rollout");
  const auto before = Look();
  std::map<pid_t, int64_t> steady;
  for (const auto& entry : before) {
    steady[entry.first] = StatusBytes(entry.first, "VmRSS");
    WriteFile(absl::StrCat("/proc/", entry.first, "/clear_refs"), "5");  // forgets the peak
  }
  constexpr int kRounds = 20;
  for (int round = 0; round < kRounds && !HasFailure(); ++round) {
    EXPECT_GT(cli().Sync("actor", "rollout")["bytesMoved"].get<int64_t>(), 0);
  }
  for (const auto& [pid, rss] : steady) {
    const int64_t more = StatusBytes(pid, "VmHWM") - rss;
    std::cout << "process " << pid << ": at most " << more / 1024 << " KiB more\n";
    EXPECT_LE(more, bytes + bytes * 3 / 4) << "of " << bytes;
  }
  // What the allocator keeps of a copy that was freed comes and goes.
  ExpectNoMoreThan(before, kRounds, bytes / 2);
}

}  // namespace
}  // namespace regroup::harness
