#include "client/flags.h"

#include <filesystem>
#include <limits>
#include <string>
#include <vector>

#include "client/errors.h"
#include "gtest/gtest.h"

namespace regroup {
namespace {

std::string Cwd() { return std::filesystem::current_path().string(); }

// The error of one read, which must be a usage error that names the flag and the value.
template <class Read>
std::string ErrorOf(const std::string& text, Read read) {
  FlagReader flags;
  read(&flags, text);
  EXPECT_EQ(ExitCodeOf(flags.status()), kExitUsage) << text;
  std::string message(flags.status().message());
  EXPECT_EQ(message.rfind("--x=" + text + ":", 0), 0) << message;
  return message;
}

TEST(Flags, Int_WholeTextInRange) {
  FlagReader flags;
  EXPECT_EQ(flags.Int("--x", "1", 1, 10), 1);
  EXPECT_EQ(flags.Int("--x", "10", 1, 10), 10);
  EXPECT_EQ(flags.Int("--x", "-5", -5, 10), -5);
  EXPECT_TRUE(flags.status().ok());
  for (const char* text : {"0", "11", "1e3", "1.0", "+1", " 1", "1 ", "0x1", "one", "1,2", "--1",
                           "99999999999999999999", "-0"}) {
    EXPECT_NE(ErrorOf(text, [](FlagReader* f, const std::string& t) { f->Int("--x", t, 1, 10); })
                  .find("an integer in 1..10"),
              std::string::npos);
  }
}

TEST(Flags, Number_FiniteWholeText) {
  FlagReader flags;
  EXPECT_EQ(flags.Number("--x", "1e-5", kPositive), 1e-5);
  EXPECT_EQ(flags.Number("--x", "0", kNotNegative), 0);
  EXPECT_EQ(flags.Number("--x", ".5", kBelowOne), 0.5);
  EXPECT_EQ(flags.Number("--x", "1", kUpToOne), 1);
  EXPECT_EQ(flags.Number("--x", "0e5", kNotNegative), 0);
  EXPECT_TRUE(flags.status().ok());
  for (const char* text : {"nan", "inf", "-inf", "infinity", "1e400", "1e-400", "-1", "0x10",
                           "1..2", "1e", " 1", "1 ", "1,5", "e", "."}) {
    EXPECT_NE(ErrorOf(text, [](FlagReader* f,
                               const std::string& t) { f->Number("--x", t, kNotNegative); })
                  .find("a finite number, at least 0"),
              std::string::npos);
  }
  const auto below_one = [](FlagReader* f, const std::string& t) {
    f->Number("--x", t, kBelowOne);
  };
  EXPECT_NE(ErrorOf("1", below_one).find("and below 1"), std::string::npos);
  const auto to_one = [](FlagReader* f, const std::string& t) { f->Number("--x", t, kUpToOne); };
  const auto positive = [](FlagReader* f, const std::string& t) { f->Number("--x", t, kPositive); };
  EXPECT_NE(ErrorOf("0", positive).find("above 0"), std::string::npos);
  EXPECT_NE(ErrorOf("1.01", to_one).find("and at most 1"), std::string::npos);
}

TEST(Flags, Seed_AllOf64Bits) {
  FlagReader flags;
  EXPECT_EQ(flags.Seed("--x", "18446744073709551615"), std::numeric_limits<uint64_t>::max());
  EXPECT_TRUE(flags.status().ok());
  for (const char* text : {"18446744073709551616", "-1", "1.5", "x"}) {
    ErrorOf(text, [](FlagReader* f, const std::string& t) { f->Seed("--x", t); });
  }
}

TEST(Flags, Timeout_NeedsAUnit) {
  FlagReader flags;
  EXPECT_EQ(flags.Timeout("--x", "30s"), absl::Seconds(30));
  EXPECT_EQ(flags.Timeout("--x", "1.5m"), absl::Seconds(90));
  EXPECT_EQ(flags.Timeout("--x", "1000ms"), absl::Seconds(1));
  EXPECT_EQ(flags.Timeout("--x", "1h"), absl::Hours(1));
  EXPECT_TRUE(flags.status().ok());
  for (const char* text :
       {"30", "0", "0s", "-1s", "inf", "999ms", "61m", "s", "30 s", "30s ", "1d"}) {
    ErrorOf(text, [](FlagReader* f, const std::string& t) { f->Timeout("--x", t); });
  }
}

TEST(Flags, Name_AllowedCharactersAndLength) {
  FlagReader flags;
  for (const std::string& text : {std::string("a"), std::string("A.b_c-1"), std::string(63, 'x')}) {
    EXPECT_EQ(flags.Name("--x", text), text);
  }
  EXPECT_TRUE(flags.status().ok());
  for (const char* text : {".a", "-a", "_a", "a/b", "../a", "a b", "é", "a:b"}) {
    ErrorOf(text, [](FlagReader* f, const std::string& t) { f->Name("--x", t); });
  }
  ErrorOf(std::string(64, 'x'), [](FlagReader* f, const std::string& t) { f->Name("--x", t); });
}

TEST(Flags, Ranks_KeepTheirOrder) {
  FlagReader flags;
  EXPECT_EQ(flags.Ranks("--x", "2,0-1"), (std::vector<int>{2, 0, 1}));
  EXPECT_TRUE(flags.status().ok());
  flags.Ranks("--x", "0,0");
  EXPECT_EQ(ExitCodeOf(flags.status()), kExitUsage);
  EXPECT_NE(flags.status().message().find("--x"), std::string::npos);
}

TEST(Flags, Tokens_CommaSeparated) {
  FlagReader flags;
  EXPECT_EQ(flags.Tokens("--x", "1,2147483647,0"), (std::vector<int32_t>{1, 2147483647, 0}));
  EXPECT_TRUE(flags.status().ok());
  for (const char* text : {"1,,2", ",", "1,", "-1", "2147483648", "1, 2", "a", "1;2", "1.0"}) {
    ErrorOf(text, [](FlagReader* f, const std::string& t) { f->Tokens("--x", t); });
  }
}

TEST(Flags, Path_IsMadeAbsolute) {
  FlagReader flags;
  EXPECT_EQ(flags.Path("--x", "a/b"), Cwd() + "/a/b");
  EXPECT_EQ(flags.Path("--x", "./a/../b/"), Cwd() + "/b");
  EXPECT_EQ(flags.Path("--x", "/a//b/"), "/a/b");
  EXPECT_EQ(flags.Path("--x", "/"), "/");
  EXPECT_TRUE(flags.status().ok());
  FlagReader wrong;
  wrong.Path("--x", std::string(5000, 'a'));
  EXPECT_EQ(ExitCodeOf(wrong.status()), kExitUsage);
}

TEST(Flags, ModelSpec_OnlyFoldersAreMadeAbsolute) {
  FlagReader flags;
  EXPECT_EQ(flags.ModelSpec("--x", "models/m"), Cwd() + "/models/m");
  EXPECT_EQ(flags.ModelSpec("--x", "random:m"), "random:" + Cwd() + "/m");
  EXPECT_EQ(flags.ModelSpec("--x", "random:/m"), "random:/m");
  EXPECT_EQ(flags.ModelSpec("--x", "mlp:in=8,hidden=16"), "mlp:in=8,hidden=16");
  EXPECT_TRUE(flags.status().ok());
  ErrorOf("random:", [](FlagReader* f, const std::string& t) { f->ModelSpec("--x", t); });
}

TEST(Flags, Choice_NamesWhatIsAllowed) {
  FlagReader flags;
  EXPECT_EQ(flags.Choice<int>("--x", "b", {{"a", 1}, {"b", 2}}), 2);
  const std::string message = ErrorOf("B", [](FlagReader* f, const std::string& t) {
    f->Choice<int>("--x", t, {{"a", 1}, {"b", 2}});
  });
  EXPECT_EQ(message, "--x=B: must be one of a, b");
}

TEST(Flags, FirstErrorIsKept) {
  FlagReader flags;
  flags.Int("--first", "x", 0, 1);
  flags.Int("--second", "x", 0, 1);
  EXPECT_EQ(flags.status().message(), "--first=x: must be an integer in 0..1");
}

}  // namespace
}  // namespace regroup
