#include "daemon/node/worker_process.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace regroup {
namespace {

using ::testing::HasSubstr;

// Lets this process open `count` more descriptors.
void AllowFiles(size_t count) {
  std::vector<int> fds;
  while (fds.size() <= count) {
    fds.push_back(open("/dev/null", O_RDONLY));
    ASSERT_GE(fds.back(), 0);
  }
  rlimit limit;
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  limit.rlim_cur = fds.back();
  for (int fd : fds) close(fd);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
}

TEST(WorkerProcess, Spawn_NoPidfdLeft_LeavesNoChild) {
  rlimit limit;
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  AllowFiles(4);  // two pipes
  SpawnOptions options;
  options.binary = "/bin/sleep";
  options.args = {"1000"};
  const absl::StatusOr<WorkerProcess> process = WorkerProcess::Spawn(options);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
  ASSERT_FALSE(process.ok());
  EXPECT_THAT(process.status().message(), HasSubstr("pidfd"));
  EXPECT_EQ(waitpid(-1, nullptr, WNOHANG), -1);
  EXPECT_EQ(errno, ECHILD);
}

TEST(WorkerProcess, Spawn_NoSuchBinary_IsNamed) {
  SpawnOptions options;
  options.binary = "/nosuch";
  EXPECT_THAT(WorkerProcess::Spawn(options).status().message(), HasSubstr("/nosuch"));
}

}  // namespace
}  // namespace regroup
