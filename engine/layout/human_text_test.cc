#include "engine/layout/human_text.h"

#include <gtest/gtest.h>

#include <string>

namespace regroup {
namespace {

TEST(HumanTextTest, Numbers_AreShortAndRounded) {
  EXPECT_EQ(HumanBytes(0), "0 B");
  EXPECT_EQ(HumanBytes(999), "999 B");
  EXPECT_EQ(HumanBytes(999949), "999.9 kB");
  EXPECT_EQ(HumanBytes(999950), "1.0 MB");
  EXPECT_EQ(HumanCount(134515008), "134.5 M");
}

TEST(HumanTextTest, Printable_KeepsTextOfAnyLanguage) {
  for (const std::string text : {"/data/gr\u00f6\u00dfe", "\u6a21\u578b", "\U0001f600", "a b"}) {
    EXPECT_EQ(Printable(text), text);
  }
}

TEST(HumanTextTest, Printable_EscapesWhatIsNoText) {
  EXPECT_EQ(Printable("a\nb\x1b[0m\x7f"), R"(a\nb\x1b[0m\x7f)");
  EXPECT_EQ(Printable(std::string("\0", 1)), R"(\x00)");
  EXPECT_EQ(Printable("it's"), R"(it\'s)");
  const std::string no_utf8[] = {
      "\xff",              // of no character
      "\x80",              // the middle of one
      "\xc3",              // the beginning of one
      "\xe6\xa8",          // two thirds of one
      "\xc0\xaf",          // longer than it must be
      "\xe0\x9f\xbf",      // so too
      "\xf0\x8f\xbf\xbf",  // so too
      "\xed\xa0\x80",      // half of a pair of UTF-16
      "\xf4\x90\x80\x80",  // beyond U+10FFFF
      "\xc2\x9b",          // a control character: begins terminal commands
  };
  for (const std::string& bytes : no_utf8) {
    EXPECT_EQ(Printable(bytes).size(), 4 * bytes.size()) << Printable(bytes);
    EXPECT_EQ(Printable(bytes).substr(0, 2), R"(\x)");
  }
}

TEST(HumanTextTest, Printable_CutsAtACharacter) {
  EXPECT_EQ(Printable("abcdef", 3), "abc...");
  EXPECT_EQ(Printable("abc", 3), "abc");
  EXPECT_EQ(Printable("ab\u00f6", 3), "ab...");
}

}  // namespace
}  // namespace regroup
