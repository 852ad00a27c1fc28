#include "daemon/node/state_dir.h"

#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace regroup {
namespace {

using ::testing::HasSubstr;

TEST(StateDir, Lock_NewFolder_IsPrivate) {
  const std::string path = absl::StrCat(::testing::TempDir(), "/state_new/a/b");
  const absl::StatusOr<StateDir> state = StateDir::Lock(path);
  ASSERT_TRUE(state.ok()) << state.status();
  struct stat info;
  ASSERT_EQ(stat(path.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0700u);
}

TEST(StateDir, Lock_UsedFolder_NamesFolderAndPid) {
  const std::string path = absl::StrCat(::testing::TempDir(), "/state_used");
  {
    const absl::StatusOr<StateDir> first = StateDir::Lock(path);
    ASSERT_TRUE(first.ok()) << first.status();
    const absl::StatusOr<StateDir> second = StateDir::Lock(path);
    ASSERT_EQ(second.status().code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(second.status().message(), HasSubstr(path));
    EXPECT_THAT(second.status().message(), HasSubstr(absl::StrCat("pid ", getpid())));
  }
  EXPECT_TRUE(StateDir::Lock(path).ok());  // free again
}

TEST(StateDir, Lock_FolderThatCannotBe_NamesFlagAndFolder) {
  // A file in the way, as a part of the path and as all of it.
  for (const std::string path : {"/proc/self/status/x", "/proc/self/status"}) {
    const absl::StatusOr<StateDir> state = StateDir::Lock(path);
    ASSERT_FALSE(state.ok());
    EXPECT_THAT(state.status().message(), HasSubstr("--state-dir=" + path));
    EXPECT_THAT(state.status().message(), HasSubstr("allowed"));
  }
}

TEST(StateDir, DefaultStateDir_PrefersXdgThenHome) {
  setenv("XDG_STATE_HOME", "/x", 1);
  setenv("HOME", "/h", 1);
  EXPECT_EQ(*DefaultStateDir("a"), "/x/regroup/a");
  unsetenv("XDG_STATE_HOME");
  EXPECT_EQ(*DefaultStateDir("a"), "/h/.local/state/regroup/a");
  unsetenv("HOME");
  EXPECT_THAT(DefaultStateDir("a").status().message(), HasSubstr("--state-dir"));
}

}  // namespace
}  // namespace regroup
