// The worker as a process: its command line, and that it follows its daemon.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "grpcpp/client_context.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/security/credentials.h"
#include "regroup/v1/worker.grpc.pb.h"

extern char** environ;

namespace regroup {
namespace {

using ::testing::HasSubstr;

constexpr char kWorker[] = "daemon/worker/worker_for_test";
constexpr int kDeadlineMilliseconds = 30000;

bool EndsInTime(pid_t pid) {
  pollfd ended = {static_cast<int>(syscall(SYS_pidfd_open, pid, 0)), POLLIN, 0};
  const bool in_time = poll(&ended, 1, kDeadlineMilliseconds) == 1;
  close(ended.fd);
  return in_time;
}

// A worker started as a daemon starts it; killed if it is still there at the end.
class Process {
 public:
  explicit Process(const std::vector<std::string>& flags, const std::string& program = kWorker) {
    int errors[2];
    EXPECT_EQ(pipe2(errors, O_CLOEXEC), 0);
    errors_ = errors[0];
    std::vector<std::string> words = {program};
    words.insert(words.end(), flags.begin(), flags.end());
    std::vector<char*> argv;
    argv.reserve(words.size() + 1);
    for (std::string& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, errors[1], STDERR_FILENO);
    EXPECT_EQ(posix_spawn(&pid_, program.c_str(), &actions, nullptr, argv.data(), environ), 0);
    posix_spawn_file_actions_destroy(&actions);
    close(errors[1]);
  }

  ~Process() {
    if (!reaped_) {
      kill(pid_, SIGKILL);
      waitpid(pid_, nullptr, 0);
    }
    close(errors_);
  }

  // The exit status as waitpid gives it; -1 if the process does not end in time.
  int Wait() {
    int status = 0;
    if (!EndsInTime(pid_) || waitpid(pid_, &status, 0) != pid_) return -1;
    reaped_ = true;
    return status;
  }

  // Everything it said on stderr, once it ended.
  std::string Errors() {
    std::string text;
    char buffer[512];
    for (ssize_t got = 0; (got = read(errors_, buffer, sizeof(buffer))) > 0;) {
      text.append(buffer, got);
    }
    return text;
  }

  pid_t pid() const { return pid_; }

 private:
  pid_t pid_ = 0;
  int errors_ = -1;
  bool reaped_ = false;
};

class WorkerProcessTest : public ::testing::Test {
 protected:
  WorkerProcessTest() {
    char path[] = "/tmp/regroup-test-XXXXXX";  // short: a socket path has 108 bytes
    folder_ = mkdtemp(path);
    EXPECT_EQ(pipe(lifeline_), 0);
    fcntl(lifeline_[1], F_SETFD, FD_CLOEXEC);  // only the daemon holds this end
  }
  ~WorkerProcessTest() override {
    CloseLifeline();
    close(lifeline_[0]);
    std::filesystem::remove_all(folder_);
  }

  void CloseLifeline() {
    if (lifeline_[1] >= 0) close(lifeline_[1]);
    lifeline_[1] = -1;
  }

  std::string socket() const { return folder_ + "/w/3.sock"; }

  std::vector<std::string> Flags(const std::string& device = "cpu") {
    std::filesystem::create_directory(folder_ + "/w");
    return {"--rank=3",
            absl::StrCat("--socket=", socket()),
            "--incarnation=18446744073709551615",
            absl::StrCat("--lifeline-fd=", lifeline_[0]),
            "--host=127.0.0.1",
            absl::StrCat("--device=", device)};
  }

  grpc::Status GetState(v1::WorkerState* state) {
    auto stub = v1::Worker::NewStub(
        grpc::CreateChannel(absl::StrCat("unix:", socket()), grpc::InsecureChannelCredentials()));
    grpc::ClientContext context;
    context.set_wait_for_ready(true);
    context.set_deadline(
        absl::ToChronoTime(absl::Now() + absl::Milliseconds(kDeadlineMilliseconds)));
    return stub->GetState(&context, {}, state);
  }

  std::string folder_;
  int lifeline_[2] = {-1, -1};
};

TEST_F(WorkerProcessTest, Lifeline_Closed_EndsTheProcessAndRemovesItsSocketAndFolder) {
  Process worker(Flags());
  v1::WorkerState state;
  const grpc::Status status = GetState(&state);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(state.rank(), 3);
  EXPECT_EQ(state.incarnation(), 18446744073709551615u);
  EXPECT_EQ(state.pid(), worker.pid());
  ASSERT_TRUE(std::filesystem::exists(socket()));

  CloseLifeline();
  const int ended = worker.Wait();
  EXPECT_TRUE(WIFEXITED(ended) && WEXITSTATUS(ended) == 0) << ended;
  EXPECT_FALSE(std::filesystem::exists(socket()));
  EXPECT_FALSE(std::filesystem::exists(folder_ + "/w"));
}

// A shell plays the daemon; this process holds the lifeline open, so that only the parent's death
// is seen.
class ParentDeathTest : public WorkerProcessTest {
 protected:
  ParentDeathTest() { prctl(PR_SET_CHILD_SUBREAPER, 1); }
  ~ParentDeathTest() override { prctl(PR_SET_CHILD_SUBREAPER, 0); }

  void KillTheParent(bool worker_is_stopped) {
    std::string line = kWorker;
    for (const std::string& flag : Flags()) absl::StrAppend(&line, " ", flag);
    Process shell({"-c", absl::StrCat(line, " & wait")}, "/bin/sh");
    v1::WorkerState state;
    const grpc::Status status = GetState(&state);
    ASSERT_TRUE(status.ok()) << status.error_message();
    ASSERT_NE(state.pid(), shell.pid());
    if (worker_is_stopped) kill(state.pid(), SIGSTOP);
    kill(shell.pid(), SIGKILL);
    shell.Wait();
    const bool ended = EndsInTime(state.pid());
    EXPECT_TRUE(ended);
    if (!ended) kill(state.pid(), SIGKILL);
    waitpid(state.pid(), nullptr, 0);
    EXPECT_FALSE(std::filesystem::exists(folder_ + "/w"));
  }
};

TEST_F(ParentDeathTest, RunningWorker_EndsAndCleansUp) { KillTheParent(false); }

TEST_F(ParentDeathTest, StoppedWorker_EndsAndCleansUp) { KillTheParent(true); }

TEST_F(WorkerProcessTest, Continue_WhileTheDaemonLives_ChangesNothing) {
  Process worker(Flags());
  v1::WorkerState state;
  ASSERT_TRUE(GetState(&state).ok());
  kill(worker.pid(), SIGSTOP);
  kill(worker.pid(), SIGCONT);
  EXPECT_TRUE(GetState(&state).ok());
}

TEST_F(WorkerProcessTest, Interrupt_IsLeftToTheDaemon) {
  Process worker(Flags());
  v1::WorkerState state;
  ASSERT_TRUE(GetState(&state).ok());
  kill(worker.pid(), SIGINT);
  kill(worker.pid(), SIGHUP);
  EXPECT_TRUE(GetState(&state).ok());
}

TEST_F(WorkerProcessTest, CommandLine_ThatDoesNotParse_Exits2) {
  Process no_flags({});
  const int status = no_flags.Wait();
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 2) << status;
  std::vector<std::string> flags = Flags();
  flags[0] = "--rank=x";
  Process bad_rank(flags);
  const int bad_status = bad_rank.Wait();
  EXPECT_TRUE(WIFEXITED(bad_status) && WEXITSTATUS(bad_status) == 2) << bad_status;
  EXPECT_THAT(bad_rank.Errors(), HasSubstr("--rank"));
}

TEST_F(WorkerProcessTest, Start_WhatItCannotDo_Exits1AndNamesTheFlag) {
  Process other_device(Flags("cuda"));
  const int status = other_device.Wait();
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 1) << status;
  EXPECT_THAT(other_device.Errors(), HasSubstr("not available in this version: --device=cuda"));

  std::vector<std::string> flags = Flags();
  flags[3] = "--lifeline-fd=987";
  Process no_lifeline(flags);
  const int fd_status = no_lifeline.Wait();
  EXPECT_TRUE(WIFEXITED(fd_status) && WEXITSTATUS(fd_status) == 1) << fd_status;
  EXPECT_THAT(no_lifeline.Errors(), HasSubstr("--lifeline-fd=987"));

  flags = Flags();
  flags[1] = absl::StrCat("--socket=/tmp/", std::string(120, 'x'));
  Process long_path(flags);
  const int path_status = long_path.Wait();
  EXPECT_TRUE(WIFEXITED(path_status) && WEXITSTATUS(path_status) == 1) << path_status;
  EXPECT_THAT(long_path.Errors(), HasSubstr("--socket="));
}

}  // namespace
}  // namespace regroup
