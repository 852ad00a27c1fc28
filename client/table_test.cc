#include "client/table.h"

#include "gtest/gtest.h"

namespace regroup {
namespace {

TEST(Table, Columns_AreAsWideAsTheirWidestCell) {
  Table table({{"name"}, {"n", Align::kRight}});
  table.AddRow({"a", "1"});
  table.AddRow({"longer", "1000"});
  EXPECT_EQ(table.Render(false),
            "name       n\n"
            "a          1\n"
            "longer  1000\n");
}

TEST(Table, Utf8_IsAlignedByWhatIsShown) {
  Table table({{"x"}, {"y"}});
  table.AddRow({"■ T", "1"});
  table.AddRow({"日本", "2"});
  table.AddRow({"e\u0301", "3"});  // one letter and its accent
  table.AddRow({"\xff", "4"});     // not UTF-8
  EXPECT_EQ(table.Render(false),
            "x     y\n"
            "■ T   1\n"
            "日本  2\n"
            "e\u0301     3\n"
            "\xff     4\n");
}

TEST(Table, EmptyCellsAtTheEnd_LeaveNoSpaces) {
  Table table({{"a"}, {"b"}});
  table.AddRow({"x"});
  table.AddRow({"", ""});
  EXPECT_EQ(table.Render(false, 2), "  a  b\n  x\n\n");
}

TEST(Table, Color_DoesNotMoveColumns) {
  Table table({{"a"}, {"b"}});
  table.AddRow({Cell("x", Color::kRed), "y"});
  table.AddRow({"long", "z"});
  const std::string plain = table.Render(false);
  EXPECT_EQ(plain.find('\x1b'), std::string::npos);
  EXPECT_NE(table.Render(true).find("\x1b[31mx\x1b[0m     y"), std::string::npos);
}

TEST(Table, ControlCharacters_DoNotReachTheTerminal) {
  Table table({{"a"}});
  table.AddRow({"x\n\x1b[2Jy"});
  EXPECT_EQ(table.Render(false), "a\nx ?[2Jy\n");
}

TEST(Table, TruncatedCharacters_CountAsOneColumnAByte) {
  EXPECT_EQ(DisplayWidth("\xe6\x97"), 2);
  EXPECT_EQ(DisplayWidth("a\xf0"), 2);
}

}  // namespace
}  // namespace regroup
