#include "daemon/node/supervisor.h"

#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <future>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace regroup {
namespace {

using ::testing::HasSubstr;

constexpr absl::Duration kPatience = absl::Seconds(20);

std::string FakeWorker() {
  return absl::StrCat(getenv("TEST_SRCDIR"), "/", getenv("TEST_WORKSPACE"),
                      "/daemon/node/fake_worker");
}

// The supervisor's thread stands for a daemon's main thread here: it lives as long as the workers.
class SupervisorTest : public ::testing::Test {
 protected:
  void Start(int ranks, const std::function<void(SupervisorOptions&)>& change = {}) {
    SupervisorOptions options;
    options.ranks = ranks;
    options.worker_binary = FakeWorker();
    options.health_interval = absl::Milliseconds(50);
    options.min_backoff = absl::Milliseconds(50);
    if (change) change(options);
    table_ = std::make_unique<RankTable>(ranks);
    table_->SetLostListener([this](const WorkerRef& ref, const std::string& how) {
      absl::MutexLock lock(&mutex_);
      lost_.push_back(how);
    });
    absl::StatusOr<std::unique_ptr<Supervisor>> made = Supervisor::Make(options, table_.get());
    ASSERT_TRUE(made.ok()) << made.status();
    supervisor_ = *std::move(made);
    folder_ = supervisor_->socket_folder();
    thread_ = std::thread([this] {
      Supervisor::Hooks hooks;
      hooks.all_ready = [this] { ready_.Notify(); };
      result_ = supervisor_->Run(hooks);
      ended_.Notify();
    });
  }

  void StartReady(int ranks, const std::function<void(SupervisorOptions&)>& change = {}) {
    Start(ranks, change);
    ASSERT_TRUE(ready_.WaitForNotificationWithTimeout(kPatience));
  }

  void TearDown() override {
    if (supervisor_ == nullptr) return;
    std::vector<int> pids;
    for (const RankInfo& info : table_->List()) pids.push_back(info.pid);
    supervisor_->Stop();
    thread_.join();
    for (int pid : pids) {
      if (pid > 0) {
        EXPECT_EQ(kill(pid, 0), -1) << pid << " outlives the supervisor";
      }
    }
    supervisor_ = nullptr;
    EXPECT_NE(access(folder_.c_str(), F_OK), 0) << folder_ << " is left behind";
  }

  WorkerRef Ref(int rank) {
    return (
        *table_->AwaitReady({rank}, absl::Now() + kPatience, [] { return absl::OkStatus(); }))[0];
  }
  int Pid(int rank) { return table_->List()[rank].pid; }

  // What the n-th death was reported as.
  std::string AwaitLost(size_t count) {
    absl::MutexLock lock(&mutex_);
    const auto enough = [this, count]()
                            ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return lost_.size() >= count; };
    if (!mutex_.AwaitWithTimeout(absl::Condition(&enough), kPatience))
      return "nothing was reported";
    return lost_[count - 1];
  }

  absl::Status Order(const WorkerRef& ref, const std::string& model) {
    v1::Command command;
    command.mutable_prepare_engine()->mutable_spec()->set_model(model);
    std::promise<absl::Status> done;
    const auto client = table_->Find(ref);
    if (!client.ok()) return client.status();
    (*client)->Execute(command, kPatience, [&](const absl::StatusOr<v1::CommandResult>& result) {
      done.set_value(result.status());
    });
    return done.get_future().get();
  }

  absl::Mutex mutex_;
  std::vector<std::string> lost_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<RankTable> table_;
  std::unique_ptr<Supervisor> supervisor_;
  std::string folder_;
  absl::Notification ready_;
  absl::Notification ended_;
  absl::Status result_;
  std::thread thread_;
};

TEST_F(SupervisorTest, Start_AllRanks_GetReadyInAPrivateFolder) {
  StartReady(3);
  for (const RankInfo& info : table_->List()) {
    EXPECT_EQ(info.state, v1::RANK_STATE_READY);
    EXPECT_GT(info.pid, 0);
    EXPECT_EQ(info.error, "");
  }
  struct stat info;
  ASSERT_EQ(stat(folder_.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0700u);
}

TEST_F(SupervisorTest, Start_NoRanks_IsReadyAtOnce) { StartReady(0); }

TEST_F(SupervisorTest, Death_BySignal_IsReportedWithin2sAndReplaced) {
  StartReady(2);
  const WorkerRef before = Ref(1);
  const int pid = Pid(1);
  const absl::Time killed = absl::Now();
  kill(pid, SIGKILL);
  EXPECT_EQ(AwaitLost(1), absl::StrCat("rank 1 (pid ", pid, ") was killed by SIGKILL"));
  EXPECT_LT(absl::Now() - killed, absl::Seconds(2));
  EXPECT_THAT(table_->Find(before).status().message(), HasSubstr("was killed by SIGKILL"));

  const WorkerRef after = Ref(1);
  EXPECT_NE(after.incarnation, before.incarnation);
  EXPECT_NE(Pid(1), pid);
  EXPECT_THAT(table_->List()[1].error, HasSubstr("was killed by SIGKILL"));
  EXPECT_EQ(table_->List()[0].error, "");
}

TEST_F(SupervisorTest, Death_DuringACall_EndsItWithTheExitStatusAndKeepsTheLastLines) {
  StartReady(2);
  const WorkerRef ref = Ref(0);
  EXPECT_TRUE(Order(ref, "print:out of luck").ok());
  const absl::Status status = Order(ref, "exit:3");
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(status.message(), HasSubstr("exited with status 3"));
  EXPECT_THAT(table_->List()[0].error, HasSubstr("out of luck"));
}

TEST_F(SupervisorTest, Death_BySegfault_NamesTheSignal) {
  StartReady(1);
  EXPECT_THAT(Order(Ref(0), "segv").message(), HasSubstr("was killed by SIGSEGV"));
}

TEST_F(SupervisorTest, Hang_StoppedWorker_IsKilledAndReported) {
  StartReady(2, [](SupervisorOptions& options) { options.hang_timeout = absl::Milliseconds(600); });
  const int pid = Pid(0);
  kill(pid, SIGSTOP);
  EXPECT_EQ(AwaitLost(1), absl::StrCat("rank 0 (pid ", pid,
                                       ") did not answer for 600ms and was killed by SIGKILL"));
  Ref(0);  // comes back
}

TEST_F(SupervisorTest, Kill_OfAnEarlierIncarnation_IsIgnored) {
  StartReady(1);
  const WorkerRef first = Ref(0);
  supervisor_->Kill(first, "was asked to");
  EXPECT_THAT(AwaitLost(1), HasSubstr("was asked to and was killed by SIGKILL"));
  const WorkerRef second = Ref(0);
  supervisor_->Kill(first, "again");
  EXPECT_TRUE(Order(second, "print:alive").ok());
  EXPECT_EQ(Ref(0), second);
}

TEST_F(SupervisorTest, Start_WorkerFailsAlways_GivesUpWithItsWords) {
  setenv("FAKE_WORKER_FAILS", "1", 1);
  Start(2, [](SupervisorOptions& options) { options.min_backoff = absl::Milliseconds(1); });
  ASSERT_TRUE(ended_.WaitForNotificationWithTimeout(kPatience));
  unsetenv("FAKE_WORKER_FAILS");
  EXPECT_THAT(result_.message(), HasSubstr("exited with status 4"));
  EXPECT_THAT(result_.message(), HasSubstr("cannot find my libraries"));
}

TEST_F(SupervisorTest, Start_NoBinary_NamesIt) {
  Start(1, [](SupervisorOptions& options) { options.worker_binary = "/nowhere/regroup-worker"; });
  ASSERT_TRUE(ended_.WaitForNotificationWithTimeout(kPatience));
  EXPECT_THAT(result_.message(), HasSubstr("/nowhere/regroup-worker"));
}

// A daemon that is SIGKILLed takes its workers along.
TEST(Supervisor, Daemon_Killed_WorkersEnd) {
  int report[2];
  ASSERT_EQ(pipe(report), 0);
  const std::string self = absl::StrCat(getenv("TEST_SRCDIR"), "/", getenv("TEST_WORKSPACE"),
                                        "/daemon/node/fake_daemon");
  const std::string fd = absl::StrCat(report[1]);
  const std::string worker = FakeWorker();
  const int daemon = fork();
  if (daemon == 0) {
    execl(self.c_str(), self.c_str(), worker.c_str(), fd.c_str(), nullptr);
    _exit(1);
  }
  close(report[1]);
  int pids[2] = {};
  ASSERT_EQ(read(report[0], pids, sizeof(pids)), static_cast<ssize_t>(sizeof(pids)));
  close(report[0]);
  ASSERT_EQ(kill(pids[0], 0), 0);
  kill(daemon, SIGKILL);
  waitpid(daemon, nullptr, 0);
  // Orphans are reaped by init; where that is slow they are zombies, which is an end as well.
  const auto gone = [](int pid) {
    std::ifstream stat(absl::StrCat("/proc/", pid, "/stat"));
    std::string content;
    std::getline(stat, content);
    return content.empty() || content.find(") Z") != std::string::npos;
  };
  const absl::Time deadline = absl::Now() + kPatience;
  while (absl::Now() < deadline && !(gone(pids[0]) && gone(pids[1]))) std::this_thread::yield();
  EXPECT_TRUE(gone(pids[0]));
  EXPECT_TRUE(gone(pids[1]));
  PrivateDir::RemoveStale();
}

}  // namespace
}  // namespace regroup
