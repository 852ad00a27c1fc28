#include "daemon/node/worker_client.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <memory>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "daemon/node/fd.h"
#include "daemon/node/private_dir.h"
#include "daemon/node/worker_process.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace regroup {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(20);

struct Answer {
  absl::Notification arrived;
  absl::Status status;
};

std::shared_ptr<Answer> Execute(WorkerClient& client) {
  auto answer = std::make_shared<Answer>();
  client.Execute(v1::Command(), kPatience,
                 [answer](const absl::StatusOr<v1::CommandResult>& result) {
                   answer->status = result.status();
                   answer->arrived.Notify();
                 });
  return answer;
}

class WorkerClientTest : public ::testing::Test {
 protected:
  // Starts a worker and waits until it listens.
  void SetUp() override {
    int lifeline[2];
    ASSERT_EQ(pipe2(lifeline, O_CLOEXEC), 0);
    lifeline_read_.Reset(lifeline[0]);
    lifeline_write_.Reset(lifeline[1]);
    SpawnOptions options;
    options.binary = absl::StrCat(getenv("TEST_SRCDIR"), "/", getenv("TEST_WORKSPACE"),
                                  "/daemon/node/fake_worker");
    options.args = {"--rank=0", absl::StrCat("--socket=", socket_), "--incarnation=7",
                    absl::StrCat("--lifeline-fd=", lifeline_read_.get())};
    options.lifeline_fd = lifeline_read_.get();
    absl::StatusOr<WorkerProcess> process = WorkerProcess::Spawn(options);
    ASSERT_TRUE(process.ok()) << process.status();
    process_ = std::make_unique<WorkerProcess>(*std::move(process));
    client_ = WorkerClient::Make({0, 7}, socket_);
    // Another connection than the client's, which is made when it is first used.
    const std::shared_ptr<WorkerClient> probe = WorkerClient::Make({0, 7}, socket_);
    absl::Notification up;
    probe->GetState(kPatience, [&up](const absl::StatusOr<v1::WorkerState>&) { up.Notify(); });
    up.WaitForNotification();
  }

  const absl::StatusOr<PrivateDir> dir_ = PrivateDir::Make();
  const std::string socket_ = absl::StrCat(dir_->path(), "/0.7");
  Fd lifeline_read_;
  Fd lifeline_write_;
  std::unique_ptr<WorkerProcess> process_;
  std::shared_ptr<WorkerClient> client_;
};

TEST_F(WorkerClientTest, Connect_WorkerIsSlowToAnswer_IsWaitedFor) {
  kill(process_->pid(), SIGSTOP);
  siginfo_t stopped;  // it runs on for a moment after the signal
  ASSERT_EQ(waitid(P_PID, process_->pid(), &stopped, WSTOPPED | WNOWAIT), 0);
  const auto answer = Execute(*client_);
  // Longer than a busy machine takes to let a worker shake hands.
  EXPECT_FALSE(answer->arrived.WaitForNotificationWithTimeout(absl::Milliseconds(700)));
  kill(process_->pid(), SIGCONT);
  ASSERT_TRUE(answer->arrived.WaitForNotificationWithTimeout(kPatience));
  EXPECT_TRUE(answer->status.ok()) << answer->status;
}

TEST_F(WorkerClientTest, BrokenConnection_WaitsForTheWordOnHowItEnded) {
  ASSERT_TRUE(Execute(*client_)->arrived.WaitForNotificationWithTimeout(kPatience));
  process_ = nullptr;  // killed
  const auto answer = Execute(*client_);
  client_->Lost("rank 0 (pid 5) was killed by SIGKILL");
  ASSERT_TRUE(answer->arrived.WaitForNotificationWithTimeout(kPatience));
  EXPECT_EQ(answer->status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(answer->status.message(), "rank 0 (pid 5) was killed by SIGKILL");
}

TEST_F(WorkerClientTest, BrokenConnection_NobodyKnowsWhy_EndsWithWhatTheConnectionSaid) {
  ASSERT_TRUE(Execute(*client_)->arrived.WaitForNotificationWithTimeout(kPatience));
  process_ = nullptr;
  const auto answer = Execute(*client_);
  const absl::Time deadline = absl::Now() + kPatience;
  while (!answer->arrived.HasBeenNotified() && absl::Now() < deadline) {
    client_->EndUndecided(absl::InfiniteFuture());
    std::this_thread::yield();
  }
  ASSERT_TRUE(answer->arrived.HasBeenNotified());
  EXPECT_EQ(answer->status.code(), absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace regroup
