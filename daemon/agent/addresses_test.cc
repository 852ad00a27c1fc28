#include "daemon/agent/addresses.h"

#include <map>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace regroup {
namespace {

using ::testing::HasSubstr;

// A machine b at 10.0.0.2 whose own name is its loopback address, as Debian has it.
AddressSource Machine() {
  AddressSource source;
  source.resolve = [](const std::string& host) -> absl::StatusOr<std::vector<std::string>> {
    const std::map<std::string, std::vector<std::string>> names = {
        {"a", {"10.0.0.1"}},
        {"b", {"127.0.1.1"}},
        {"both", {"127.0.1.1", "10.0.0.2"}},
        {"localhost", {"::1", "127.0.0.1"}},
        {"other", {"10.9.9.9"}},
        {"six", {"fd00::2"}}};
    const auto found = names.find(host);
    if (found != names.end()) return found->second;
    if (host.find_first_not_of("0123456789.:abcdf") == std::string::npos) {
      return std::vector<std::string>{host};
    }
    return absl::UnavailableError(absl::StrCat("'", host, "' has no address"));
  };
  source.toward = [](const std::string& host, int) -> absl::StatusOr<std::string> {
    return host == "fd00::1" ? "fd00::2" : "10.0.0.2";
  };
  source.own = [] { return std::vector<std::string>{"127.0.0.1", "::1", "fd00::2", "10.0.0.2"}; };
  return source;
}

absl::StatusOr<Addresses> Choose(const std::string& listen, const std::string& join,
                                 const std::string& advertise = "") {
  return ChooseAddresses({listen, advertise, join, join.empty() ? 0 : 7070}, Machine());
}

void ExpectChoice(const absl::StatusOr<Addresses>& chosen, const std::string& listen,
                  const std::string& advertise) {
  ASSERT_TRUE(chosen.ok()) << chosen.status();
  EXPECT_EQ(chosen->listen, listen);
  EXPECT_EQ(chosen->advertise, advertise);
}

void ExpectRefused(const absl::StatusOr<Addresses>& chosen, const std::string& words) {
  EXPECT_EQ(chosen.status().code(), absl::StatusCode::kInvalidArgument) << chosen.status();
  EXPECT_THAT(chosen.status().message(), HasSubstr(words));
}

TEST(Addresses, Literal_IsAdvertisedAsItIs) {
  ExpectChoice(Choose("127.0.0.1", ""), "127.0.0.1", "127.0.0.1");
  ExpectChoice(Choose("::1", ""), "::1", "::1");
  ExpectChoice(Choose("10.0.0.2", "a"), "10.0.0.2", "10.0.0.2");
  ExpectChoice(Choose("fd00::2", "fd00::1"), "fd00::2", "fd00::2");
}

TEST(Addresses, Wildcard_TakesTheWayToThePrimary) {
  ExpectChoice(Choose("0.0.0.0", "a"), "0.0.0.0", "10.0.0.2");
  ExpectChoice(Choose("::", "fd00::1"), "::", "fd00::2");
  ExpectChoice(Choose("0.0.0.0", ""), "0.0.0.0", "10.0.0.2");
  ExpectChoice(Choose("::", ""), "::", "fd00::2");
  AddressSource v4_first = Machine();
  v4_first.own = [] { return std::vector<std::string>{"10.0.0.2", "fd00::2"}; };
  ExpectChoice(ChooseAddresses({"::", "", "", 0}, v4_first), "::", "fd00::2");
  v4_first.own = [] { return std::vector<std::string>{"10.0.0.2"}; };
  ExpectChoice(ChooseAddresses({"::", "", "", 0}, v4_first), "::", "10.0.0.2");
  AddressSource alone = Machine();
  alone.own = [] { return std::vector<std::string>{"127.0.0.1", "::1"}; };
  ExpectChoice(ChooseAddresses({"0.0.0.0", "", "", 0}, alone), "0.0.0.0", "127.0.0.1");
  ExpectChoice(ChooseAddresses({"::", "", "", 0}, alone), "::", "::1");
}

TEST(Addresses, NameOnLoopback_DoesNotHideTheNode) {
  ExpectChoice(Choose("b", "a"), "0.0.0.0", "10.0.0.2");
  ExpectChoice(Choose("b", ""), "0.0.0.0", "10.0.0.2");
  ExpectChoice(Choose("both", "a"), "10.0.0.2", "10.0.0.2");
  ExpectChoice(Choose("six", "a"), "six", "fd00::2");
  // All on one machine.
  ExpectChoice(Choose("b", "localhost"), "b", "127.0.1.1");
  ExpectChoice(Choose("localhost", ""), "localhost", "::1");
  ExpectChoice(Choose("127.0.0.1", "127.0.0.1"), "127.0.0.1", "127.0.0.1");
}

TEST(Addresses, LoopbackForAPrimaryElsewhere_IsRefused) {
  ExpectRefused(Choose("127.0.0.1", "a"), "--listen=127.0.0.1 is a loopback address");
  ExpectRefused(Choose("localhost", "a"), "--listen=localhost means ::1");
  ExpectRefused(Choose("0.0.0.0", "a", "b"), "--advertise=b means 127.0.1.1");
}

TEST(Addresses, Advertise_MustBeOfThisMachine) {
  ExpectChoice(Choose("0.0.0.0", "a", "both"), "0.0.0.0", "10.0.0.2");
  ExpectChoice(Choose("0.0.0.0", "", "10.0.0.2"), "0.0.0.0", "10.0.0.2");
  ExpectChoice(Choose("127.0.0.1", "127.0.0.1", "b"), "127.0.0.1", "127.0.1.1");
  ExpectRefused(Choose("0.0.0.0", "a", "other"), "--advertise=other is not an address of this");
  ExpectRefused(Choose("0.0.0.0", "a", "nosuch"), "--advertise=nosuch has no address");
  ExpectRefused(Choose("0.0.0.0", "a", "0.0.0.0"), "--advertise=0.0.0.0 is no address");
  ExpectRefused(Choose("0.0.0.0", "a", "10.0.0.5"), "--advertise=10.0.0.5 is not an address");
  // Names of interfaces, as libraries below take them, are no addresses.
  for (const std::string name : {"eth0", "^lo", "lo,eth0", "10.0.0.2,10.0.0.3"}) {
    ExpectRefused(Choose("0.0.0.0", "a", name), "--advertise=" + name + " has no address");
  }
  ExpectChoice(Choose("0.0.0.0", "a", ""), "0.0.0.0", "10.0.0.2");
}

TEST(Addresses, SystemAddresses_KnowLoopback) {
  const AddressSource source = SystemAddresses();
  EXPECT_EQ(source.resolve("127.0.0.1")->front(), "127.0.0.1");
  EXPECT_EQ(*source.toward("127.0.0.1", 7070), "127.0.0.1");
  EXPECT_THAT(source.own(), testing::Contains("127.0.0.1"));
  EXPECT_FALSE(source.resolve("no such host").ok());
}

TEST(Addresses, IsLoopback) {
  for (const char* address : {"127.0.0.1", "127.0.1.1", "::1", "::ffff:127.0.0.1"}) {
    EXPECT_TRUE(IsLoopbackAddress(address)) << address;
  }
  for (const char* address : {"10.0.0.1", "::", "0.0.0.0", "fd00::1", "localhost"}) {
    EXPECT_FALSE(IsLoopbackAddress(address)) << address;
  }
}

}  // namespace
}  // namespace regroup
