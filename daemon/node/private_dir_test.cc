#include "daemon/node/private_dir.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "absl/types/optional.h"
#include "gtest/gtest.h"

namespace regroup {
namespace {

namespace fs = std::filesystem;

void MakeSocket(const std::string& path) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  strncpy(address.sun_path, path.c_str(), sizeof(address.sun_path) - 1);
  const Fd fd(socket(AF_UNIX, SOCK_STREAM, 0));
  ASSERT_EQ(bind(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
}

// As a daemon that was killed leaves it.
std::string MakeStale() {
  char path[] = "/tmp/regroup-XXXXXX";
  EXPECT_NE(mkdtemp(path), nullptr);
  MakeSocket(absl::StrCat(path, "/0.1"));
  return path;
}

TEST(PrivateDir, Make_IsPrivateAndGoesWithItsOwner) {
  std::string path;
  {
    const absl::StatusOr<PrivateDir> dir = PrivateDir::Make();
    ASSERT_TRUE(dir.ok()) << dir.status();
    path = dir->path();
    struct stat info;
    ASSERT_EQ(stat(path.c_str(), &info), 0);
    EXPECT_EQ(info.st_mode & 0777, 0700u);
    MakeSocket(path + "/0.1");
  }
  EXPECT_FALSE(fs::exists(path));
}

TEST(PrivateDir, RemoveStale_TakesWhatNobodyOwns) {
  const absl::StatusOr<PrivateDir> owned = PrivateDir::Make();
  ASSERT_TRUE(owned.ok());
  MakeSocket(owned->path() + "/0.1");
  const std::string stale = MakeStale();
  const std::string foreign = MakeStale();
  std::ofstream(foreign + "/notes") << "not a socket";
  PrivateDir::RemoveStale();
  EXPECT_TRUE(fs::exists(owned->path() + "/0.1"));
  EXPECT_FALSE(fs::exists(stale));
  EXPECT_TRUE(fs::exists(foreign + "/notes"));
  fs::remove_all(foreign);
}

}  // namespace
}  // namespace regroup
