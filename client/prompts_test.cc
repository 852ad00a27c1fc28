#include "client/prompts.h"

#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace regroup {
namespace {

class PromptsTest : public ::testing::Test {
 protected:
  std::string Write(const std::string& text) {
    std::string path = ::testing::TempDir() + "/prompts" + std::to_string(getpid());
    std::ofstream(path, std::ios::binary) << text;
    return path;
  }

  std::string ErrorOf(const std::string& text) {
    const auto prompts = ReadPrompts(Write(text));
    EXPECT_FALSE(prompts.ok()) << text;
    return std::string(prompts.status().message());
  }
};

TEST_F(PromptsTest, OneArrayALine) {
  using Prompts = std::vector<std::vector<int32_t>>;
  EXPECT_EQ(*ReadPrompts(Write("[1, 2]\n[2147483647]\n")), (Prompts{{1, 2}, {2147483647}}));
  EXPECT_EQ(*ReadPrompts(Write("[0]\r\n[1]")), (Prompts{{0}, {1}}));
}

TEST_F(PromptsTest, WrongLine_IsNamed) {
  for (const char* text : {"[1]\n[]\n", "[1]\n\n[2]\n", "[1]\n{}\n", "[1]\n[1\n", "[1]\n1\n",
                           "[1]\n[1] [2]\n", "[1]\nnull"}) {
    EXPECT_EQ(ErrorOf(text).rfind("line 2 must be a JSON array of token ids", 0), 0) << text;
  }
  for (const char* text : {"[1]\n[1, -1]", "[1]\n[1, 1.0]", "[1]\n[1, 2147483648]",
                           "[1]\n[1, \"2\"]", "[1]\n[1, [2]]", "[1]\n[1, 99999999999999999999]"}) {
    EXPECT_EQ(
        ErrorOf(text).rfind("line 2 item 1: a token id must be an integer in 0..2147483647", 0), 0)
        << text;
  }
}

TEST_F(PromptsTest, DeepNesting_IsAnErrorNotACrash) { ErrorOf(std::string(1000000, '[')); }

TEST_F(PromptsTest, TooManyLines_AreRefused) {
  std::string text;
  for (int64_t i = 0; i <= kMaxPrompts; ++i) text += "[1]\n";
  EXPECT_EQ(ErrorOf(text), "line 4097 is one too many; allowed are 4096");
}

TEST_F(PromptsTest, EmptyMissingOrFolder_AreRefused) {
  EXPECT_EQ(ErrorOf(""), "has no line; must have a JSON array a line");
  EXPECT_NE(ReadPrompts("/nonexistent/file").status().message().find("No such file"),
            std::string::npos);
  EXPECT_EQ(ReadPrompts(::testing::TempDir()).status().message(), "is a folder; must be a file");
}

TEST_F(PromptsTest, LargeFile_IsRefused) {
  const std::string path = Write("");
  std::filesystem::resize_file(path, kMaxPromptFileBytes + 1);
  EXPECT_NE(ReadPrompts(path).status().message().find("is larger than"), std::string::npos);
}

// Opening a pipe that nobody writes to would wait for ever.
TEST_F(PromptsTest, PipeOrDevice_IsRefused) {
  const std::string pipe = ::testing::TempDir() + "/pipe" + std::to_string(getpid());
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  for (const std::string& path : {pipe, std::string("/dev/zero")}) {
    EXPECT_EQ(ReadPrompts(path).status().message(), "is a pipe or a device; must be a file");
  }
  unlink(pipe.c_str());
}

}  // namespace
}  // namespace regroup
