#include "engine/model/input_file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

namespace regroup {
namespace {

class InputFileTest : public testing::Test {
 protected:
  InputFileTest() {
    std::string path = testing::TempDir() + "/input-XXXXXX";
    folder_ = mkdtemp(path.data());
  }
  ~InputFileTest() override { std::filesystem::remove_all(folder_); }

  std::string Write(const std::string& name, const std::string& content) {
    const std::string path = folder_ + "/" + name;
    std::ofstream(path, std::ios::binary) << content;
    return path;
  }

  std::string folder_;
};

TEST_F(InputFileTest, ReadAt_RegularFile_GivesItsBytes) {
  const std::string content("a\0b", 3);
  const auto file = InputFile::Open(Write("f", content));
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ((*file)->size(), 3);
  std::string read(2, 'x');
  EXPECT_TRUE((*file)->ReadAt(1, 2, read.data()).ok());
  EXPECT_EQ(read, content.substr(1));
  EXPECT_TRUE((*file)->CheckUnchanged().ok());
}

TEST_F(InputFileTest, ReadAt_EmptyFile_GivesNoBytes) {
  const auto file = InputFile::Open(Write("f", ""));
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ((*file)->size(), 0);
  EXPECT_TRUE((*file)->ReadAt(0, 0, nullptr).ok());
}

TEST_F(InputFileTest, Open_Missing_ReturnsNotFoundNamingThePath) {
  const absl::Status status = InputFile::Open(folder_ + "/none").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_NE(status.message().find("/none"), absl::string_view::npos);
}

TEST_F(InputFileTest, Open_PipeOrFolderOrDevice_IsRefusedWithoutWaiting) {
  const std::string pipe = folder_ + "/pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  for (const std::string& path : {pipe, folder_, std::string("/dev/zero")}) {
    const absl::Status status = InputFile::Open(path).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << path;
    EXPECT_NE(status.message().find("regular file"), absl::string_view::npos) << status;
  }
}

TEST_F(InputFileTest, Open_PathThatNoCallTakes_IsRefusedShortly) {
  const std::string path = Write("f", "x");
  for (const std::string& bad : {std::string(), path + std::string("\0y", 2),
                                 std::string(5000, 'x'), std::string(300, 'x')}) {
    const absl::Status status = InputFile::Open(bad).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << bad;
    EXPECT_LT(status.message().size(), 400u);
  }
}

TEST_F(InputFileTest, CheckUnchanged_AfterTruncation_ReturnsDataLoss) {
  const std::string path = Write("f", "0123456789");
  const auto file = InputFile::Open(path);
  ASSERT_TRUE(file.ok());
  ASSERT_EQ(truncate(path.c_str(), 4), 0);
  EXPECT_EQ((*file)->CheckUnchanged().code(), absl::StatusCode::kDataLoss);
  std::string read(4, 'x');
  EXPECT_TRUE((*file)->ReadAt(0, 4, read.data()).ok());
  const absl::Status beyond = (*file)->ReadAt(2, 4, read.data());
  EXPECT_EQ(beyond.code(), absl::StatusCode::kDataLoss);
  EXPECT_NE(beyond.message().find("10 bytes when opened, 4 now"), absl::string_view::npos)
      << beyond;
}

TEST_F(InputFileTest, CheckUnchanged_AfterARewriteOfEqualSize_ReturnsDataLoss) {
  const std::string path = Write("f", "0123456789");
  const auto file = InputFile::Open(path);
  ASSERT_TRUE(file.ok());
  const timespec later[2] = {{2000000000, 0}, {2000000000, 0}};
  ASSERT_EQ(utimensat(AT_FDCWD, path.c_str(), later, 0), 0);
  EXPECT_EQ((*file)->CheckUnchanged().code(), absl::StatusCode::kDataLoss);
}

TEST_F(InputFileTest, ReadSmallFile_AboveTheLimit_IsRefusedWithTheNumbers) {
  const std::string path = Write("f", "12345");
  EXPECT_EQ(ReadSmallFile(path, 5).value(), "12345");
  const absl::Status status = ReadSmallFile(path, 4).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("5 bytes; at most 4"), absl::string_view::npos) << status;
}

}  // namespace
}  // namespace regroup
