#include "tests/system/namespaces.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "tests/system/process.h"

namespace regroup::harness {
namespace {

constexpr char kIp[] = "/usr/sbin/ip";
constexpr char kCable[] = "cable";

// "" if it worked, else what it said.
std::string RunIp(const std::string& arguments) {
  std::vector<std::string> argv = {kIp};
  for (absl::string_view word : absl::StrSplit(arguments, ' ')) argv.emplace_back(word);
  const auto process = Process::Start(argv);
  if (process == nullptr) return "it cannot be started";
  const int code = process->Finish(absl::Seconds(20));
  return code == 0 ? "" : absl::StrCat("ip ", arguments, ": ", process->Errors());
}

std::string HostsFolder(const std::string& name) { return "/etc/netns/" + name; }

}  // namespace

std::unique_ptr<TwoHosts> TwoHosts::Make(const std::vector<std::string>& hosts_files,
                                         std::string* why_not) {
  if (geteuid() != 0) {
    *why_not = "network namespaces take root";
    return nullptr;
  }
  if (access(kIp, X_OK) != 0) {
    *why_not = "there is no /usr/sbin/ip (package iproute2)";
    return nullptr;
  }
  static std::atomic<int> counter{0};
  auto hosts = std::unique_ptr<TwoHosts>(new TwoHosts);
  const std::string stem = absl::StrCat("rg", getpid(), "n", counter++);
  for (int i : {0, 1}) {
    const std::string name = absl::StrCat(stem, "h", i);
    *why_not = RunIp("netns add " + name);
    if (!why_not->empty()) return nullptr;
    hosts->names_[i] = name;
  }
  const std::string a = hosts->names_[0];
  const std::string b = hosts->names_[1];
  std::vector<std::string> commands = {
      absl::StrCat("-n ", a, " link add ", kCable, " type veth peer name ", kCable, " netns ", b)};
  for (int i : {0, 1}) {
    const std::string in = absl::StrCat("-n ", hosts->names_[i]);
    commands.push_back(absl::StrCat(in, " link set lo up"));
    commands.push_back(absl::StrCat(in, " link set ", kCable, " up"));
    commands.push_back(absl::StrCat(in, " addr add ", kAddress[i], "/24 dev ", kCable));
    commands.push_back(absl::StrCat(in, " addr add ", kAddress6[i], "/64 dev ", kCable, " nodad"));
  }
  for (const std::string& command : commands) {
    *why_not = RunIp(command);
    if (!why_not->empty()) return nullptr;
  }
  std::error_code error;
  for (size_t i = 0; i < hosts_files.size(); ++i) {
    const std::string folder = HostsFolder(hosts->names_[i]);
    std::filesystem::create_directories(folder, error);
    if (error) {
      *why_not = absl::StrCat(folder, ": ", error.message());
      return nullptr;
    }
    WriteFile(folder + "/hosts", hosts_files[i]);
  }
  return hosts;
}

TwoHosts::~TwoHosts() {
  std::error_code error;
  for (const std::string& name : names_) {
    if (name.empty()) continue;
    RunIp("netns delete " + name);
    std::filesystem::remove_all(HostsFolder(name), error);
  }
}

std::vector<std::string> TwoHosts::In(int host) const {
  return {kIp, "netns", "exec", names_[host]};
}

void TwoHosts::SetCable(bool connected) const {
  EXPECT_EQ(
      RunIp(absl::StrCat("-n ", names_[0], " link set ", kCable, connected ? " up" : " down")), "");
  // The address goes with the link.
  if (!connected) return;
  RunIp(absl::StrCat("-n ", names_[0], " addr replace ", kAddress[0], "/24 dev ", kCable));
  RunIp(
      absl::StrCat("-n ", names_[0], " addr replace ", kAddress6[0], "/64 dev ", kCable, " nodad"));
}

}  // namespace regroup::harness
