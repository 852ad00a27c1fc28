#include "daemon/flags.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace regroup {
namespace {

using ::testing::HasSubstr;

ParsedFlags Parse(std::vector<const char*> args) {
  args.insert(args.begin(), "regroupd");
  return ParseFlags(static_cast<int>(args.size()), args.data());
}

ParsedFlags ParseMore(const std::vector<const char*>& more) {
  std::vector<const char*> args = {"--node=a", "--listen=127.0.0.1:0", "--ranks=4"};
  args.insert(args.end(), more.begin(), more.end());
  return Parse(args);
}

void ExpectRefused(const ParsedFlags& parsed, int code, const std::string& text) {
  EXPECT_FALSE(parsed.run);
  EXPECT_EQ(parsed.exit_code, code) << parsed.text;
  EXPECT_THAT(parsed.text, HasSubstr(text));
}

TEST(Flags, All_AreRead) {
  const ParsedFlags parsed = ParseMore(
      {"--device=cpu", "--state-dir=/s", "--data-root=/a", "--data-root", "/b", "--insecure"});
  ASSERT_TRUE(parsed.run) << parsed.text;
  EXPECT_EQ(parsed.flags.node, "a");
  EXPECT_EQ(parsed.flags.host, "127.0.0.1");
  EXPECT_EQ(parsed.flags.port, 0);
  EXPECT_EQ(parsed.flags.ranks, 4);
  EXPECT_EQ(parsed.flags.state_dir, "/s");
  EXPECT_EQ(parsed.flags.data_roots, (std::vector<std::string>{"/a", "/b"}));
  EXPECT_TRUE(parsed.flags.insecure);
}

TEST(Flags, Missing_AreNamed) {
  ExpectRefused(Parse({}), 2, "--node");
  ExpectRefused(Parse({"--node=a", "--ranks=1"}), 2, "--listen");
  ExpectRefused(Parse({"--node=a", "--listen=[::1]:0"}), 2, "--ranks");
}

TEST(Flags, EmptyValue_TakesNothingFromWhatFollows) {
  ExpectRefused(ParseMore({"--state-dir=", "--insecure"}), 2, "--state-dir= has no value");
  ExpectRefused(Parse({"--node=", "--listen=127.0.0.1:0", "--ranks=1"}), 2, "--node= has no value");
}

TEST(Flags, Unknown_IsNamed) {
  ExpectRefused(ParseMore({"--rank=3"}), 2, "--rank=3");
  ExpectRefused(ParseMore({"stray"}), 2, "stray");
}

TEST(Flags, NodeAndRanks_AreChecked) {
  ExpectRefused(Parse({"--node=a b", "--listen=127.0.0.1:0", "--ranks=1"}), 2, "--node=a b");
  for (const char* ranks :
       {"--ranks=-1", "--ranks=1025", "--ranks=two", "--ranks=", "--ranks=1e3"}) {
    ExpectRefused(Parse({"--node=a", "--listen=127.0.0.1:0", ranks}), 2, "--ranks");
  }
  EXPECT_TRUE(Parse({"--node=a", "--listen=127.0.0.1:0", "--ranks=0"}).run);
  EXPECT_TRUE(Parse({"--node=a", "--listen=127.0.0.1:0", "--ranks=1024"}).run);
}

TEST(Flags, Listen_Forms) {
  const auto listen = [](const char* value) {
    return Parse({"--node=a", "--ranks=1", "--listen", value});
  };
  EXPECT_EQ(listen("[::1]:7").flags.host, "::1");
  EXPECT_EQ(listen("[::1]:7").flags.port, 7);
  EXPECT_TRUE(listen("localhost:0").run);
  EXPECT_TRUE(listen("127.8.9.1:65535").run);
  for (const char* bad : {"127.0.0.1", ":7070", "127.0.0.1:", "127.0.0.1:65536", "127.0.0.1:-1",
                          "::1:7070", "[::1]", "[x]:1", "[]:1"}) {
    ExpectRefused(listen(bad), 2, std::string("--listen=") + bad);
  }
}

TEST(Flags, Listen_BeyondLoopback_NeedsInsecure) {
  for (const char* address : {"--listen=0.0.0.0:7070", "--listen=[::]:7070", "--listen=10.0.0.1:1",
                              "--listen=example.org:1"}) {
    ExpectRefused(Parse({"--node=a", "--ranks=1", address}), 2, "--insecure");
    EXPECT_TRUE(Parse({"--node=a", "--ranks=1", address, "--insecure"}).run);
  }
}

TEST(Flags, Join_Forms) {
  const DaemonFlags alone = ParseMore({}).flags;
  EXPECT_EQ(alone.join_host, "");
  EXPECT_EQ(alone.first_rank, -1);
  const ParsedFlags parsed =
      ParseMore({"--join=[fd00::1]:7070", "--advertise=b.example", "--first-rank=8"});
  ASSERT_TRUE(parsed.run) << parsed.text;
  EXPECT_EQ(parsed.flags.join_host, "fd00::1");
  EXPECT_EQ(parsed.flags.join_port, 7070);
  EXPECT_EQ(parsed.flags.advertise, "b.example");
  EXPECT_EQ(parsed.flags.first_rank, 8);
  for (const char* bad : {"--join=h", "--join=h:0", "--join=:1", "--join=::1:70", "--join=h:x"}) {
    ExpectRefused(ParseMore({bad}), 2, bad);
  }
  for (const char* bad : {"--first-rank=-1", "--first-rank=x", "--first-rank=99997"}) {
    ExpectRefused(ParseMore({bad}), 2, "--first-rank");
  }
  EXPECT_TRUE(ParseMore({"--first-rank=99996"}).run);
}

TEST(Flags, NotAvailable_SaysSoWithCode1) {
  ExpectRefused(ParseMore({"--etcd=h:1"}), 1, "not available in this version: --etcd");
  ExpectRefused(ParseMore({"--allow-faults"}), 1, "not available in this version: --allow-faults");
  ExpectRefused(ParseMore({"--device=cuda"}), 1, "not available in this version: --device=cuda");
  ExpectRefused(ParseMore({"--device=tpu"}), 2, "--device=tpu");
}

TEST(Flags, Help_IsNoError) {
  const ParsedFlags parsed = Parse({"--help"});
  EXPECT_FALSE(parsed.run);
  EXPECT_EQ(parsed.exit_code, 0);
  EXPECT_THAT(parsed.text, HasSubstr("--data-root"));
}

}  // namespace
}  // namespace regroup
