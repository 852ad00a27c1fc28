#include "daemon/node/log_tail.h"

#include "gtest/gtest.h"

namespace regroup {
namespace {

TEST(LogTail, Append_SplitPieces_MakeWholeLines) {
  LogTail tail;
  std::vector<std::string> lines;
  const auto keep = [&](const std::string& line) { lines.push_back(line); };
  tail.Append("one\ntw", keep);
  EXPECT_EQ(lines, (std::vector<std::string>{"one"}));
  tail.Append("o\n\nthree", keep);
  EXPECT_EQ(lines, (std::vector<std::string>{"one", "two"}));
  tail.Flush(keep);
  EXPECT_EQ(lines, (std::vector<std::string>{"one", "two", "three"}));
  EXPECT_EQ(tail.Lines(), lines);
}

TEST(LogTail, Append_EndlessOutput_StaysBounded) {
  LogTail tail;
  size_t longest = 0;
  const auto measure = [&](const std::string& line) { longest = std::max(longest, line.size()); };
  tail.Append(std::string(100 * LogTail::kMaxLineBytes, 'x'), measure);
  EXPECT_EQ(longest, LogTail::kMaxLineBytes);
  EXPECT_EQ(tail.Lines().size(), LogTail::kMaxLines);
}

}  // namespace
}  // namespace regroup
