#include "tests/system/daemon.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <iostream>
#include <iterator>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"

namespace regroup::harness {
namespace {

namespace fs = std::filesystem;

constexpr absl::Duration kStartDeadline = absl::Seconds(60);
constexpr absl::Duration kStopDeadline = absl::Seconds(20);
// Workers of a killed daemon end on their own.
constexpr absl::Duration kLeftoverDeadline = absl::Seconds(10);
constexpr char kMarkName[] = "REGROUP_TEST_MARK";

std::string NewMark() {
  static std::atomic<int> counter{0};
  return absl::StrCat(kMarkName, "=", getpid(), ".", absl::ToUnixNanos(absl::Now()), ".",
                      counter++);
}

std::string Target(const fs::path& link) {
  std::error_code error;
  return fs::read_symlink(link, error).string();
}

// Socket inode -> bound path, of this network namespace.
std::map<std::string, std::string> BoundSockets() {
  std::map<std::string, std::string> sockets;
  for (const std::string& line : SplitLines(ReadFile("/proc/net/unix"))) {
    const std::vector<std::string> words = absl::StrSplit(line, ' ', absl::SkipEmpty());
    if (words.size() == 8 && words[7][0] == '/') sockets[words[6]] = words[7];
  }
  return sockets;
}

}  // namespace

std::vector<nlohmann::json> CtlResult::rows() const {
  std::vector<nlohmann::json> rows;
  for (const std::string& line : SplitLines(output)) {
    nlohmann::json row = nlohmann::json::parse(line, nullptr, false);
    if (row.is_discarded()) {
      ADD_FAILURE() << "not JSON: " << line;
      continue;
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

nlohmann::json CtlResult::json() const {
  const std::vector<nlohmann::json> all = rows();
  if (all.size() == 1) return all.front();
  ADD_FAILURE() << "expected one line of JSON, got: " << output << errors;
  return nlohmann::json::object();
}

std::vector<std::string> Ctl::Argv(const std::vector<std::string>& arguments) const {
  std::vector<std::string> argv = prefix_;
  argv.push_back(Runfile("client/regroupctl"));
  const auto given = [&](absl::string_view flag) {
    return std::any_of(arguments.begin(), arguments.end(),
                       [&](const std::string& text) { return absl::StartsWith(text, flag); });
  };
  if (!given("--server=")) argv.push_back(absl::StrCat("--server=", server_));
  if (!given("-o")) argv.emplace_back("-ojson");
  argv.insert(argv.end(), arguments.begin(), arguments.end());
  return argv;
}

std::unique_ptr<Process> Ctl::Start(const std::vector<std::string>& arguments) const {
  return Process::Start(Argv(arguments));
}

CtlResult Collect(Process& process, absl::Duration deadline) {
  CtlResult result;
  result.exit = process.Finish(deadline);
  result.output = process.Output();
  result.errors = process.Errors();
  return result;
}

CtlResult Ctl::Run(const std::vector<std::string>& arguments, absl::Duration deadline) const {
  std::unique_ptr<Process> process = Start(arguments);
  return process == nullptr ? CtlResult{} : Collect(*process, deadline);
}

CtlResult Ctl::MustRun(const std::vector<std::string>& arguments, absl::Duration deadline) const {
  CtlResult result = Run(arguments, deadline);
  EXPECT_EQ(result.exit, 0) << "regroupctl " << absl::StrJoin(arguments, " ") << "\n"
                            << result.output << result.errors;
  return result;
}

std::vector<std::string> DaemonArgv(const DaemonOptions& options) {
  std::vector<std::string> argv = {Runfile("daemon/regroupd"),
                                   absl::StrCat("--node=", options.node),
                                   absl::StrCat("--listen=", options.listen),
                                   absl::StrCat("--ranks=", options.ranks),
                                   absl::StrCat("--state-dir=", options.state_dir),
                                   absl::StrCat("--data-root=", options.data_root)};
  argv.insert(argv.begin(), options.prefix.begin(), options.prefix.end());
  if (!options.join.empty()) argv.push_back(absl::StrCat("--join=", options.join));
  argv.insert(argv.end(), options.flags.begin(), options.flags.end());
  return argv;
}

std::unique_ptr<Daemon> Daemon::Start(DaemonOptions options) {
  if (options.data_root.empty()) options.data_root = NewFolder("data");
  if (options.state_dir.empty()) options.state_dir = NewFolder("state");
  auto daemon = std::unique_ptr<Daemon>(new Daemon(std::move(options)));
  daemon->mark_ = NewMark();
  daemon->temporary_folder_ = NewShortFolder();
  const std::string& folder = daemon->temporary_folder_;
  daemon->process_ = Process::Start(
      DaemonArgv(daemon->options_),
      {daemon->mark_, absl::StrCat("TMPDIR=", folder), absl::StrCat("XDG_RUNTIME_DIR=", folder)});
  if (daemon->process_ == nullptr) return nullptr;
  const std::string listening = "listening on ";
  WaitUntil(kStartDeadline, [&] {
    for (const std::string& line : daemon->process_->OutputLines()) {
      const size_t at = line.find(listening);
      if (at != std::string::npos) daemon->address_ = line.substr(at + listening.size());
    }
    return !daemon->address_.empty() || !daemon->process_->Running();
  });
  if (daemon->address_.empty()) {
    ADD_FAILURE() << "regroupd does not listen\n"
                  << daemon->process_->Output() << daemon->process_->Errors();
    return nullptr;
  }
  daemon->ctl_ = std::make_unique<Ctl>(daemon->address_, daemon->options_.prefix);
  daemon->NoteHoldings();
  return daemon;
}

Daemon::~Daemon() {
  if (process_ != nullptr && process_->Running()) {
    EXPECT_EQ(Stop(), 0) << process_->Errors();
  }
  if (::testing::Test::HasFailure() && process_ != nullptr) {
    std::cerr << "--- what regroupd said ---\n" << process_->Errors() << "---\n";
  }
  std::error_code error;
  for (const std::string& path : held_paths_) fs::remove(path, error);
  for (const std::string& path : held_paths_) fs::remove(fs::path(path).parent_path(), error);
  fs::remove_all(temporary_folder_, error);
}

nlohmann::json Daemon::RankRow(int rank) const {
  const nlohmann::json list = ctl_->MustRun({"rank", "list"}).json();
  for (const nlohmann::json& row : list.value("ranks", nlohmann::json::array())) {
    if (row.value("rank", -1) == rank) return row;
  }
  return {};
}

pid_t Daemon::WorkerPid(int rank) const {
  const nlohmann::json row = RankRow(rank);
  return row.is_object() ? row.value("pid", 0) : 0;
}

std::set<pid_t> Daemon::Processes() const {
  std::set<pid_t> processes;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator("/proc", error)) {
    pid_t pid = 0;
    if (!absl::SimpleAtoi(entry.path().filename().string(), &pid) || !IsAlive(pid)) continue;
    const std::string environment = ReadFile((entry.path() / "environ").string());
    for (absl::string_view variable : absl::StrSplit(environment, '\0')) {
      if (variable == mark_) processes.insert(pid);
    }
  }
  return processes;
}

bool Daemon::WaitForRestart(int rank, pid_t old_pid, absl::Duration deadline) const {
  return WaitUntil(deadline, [&] {
    const nlohmann::json row = RankRow(rank);
    return row.value("state", "") == "READY" && row.value("pid", 0) != old_pid;
  });
}

void Daemon::NoteHoldings() {
  const std::map<std::string, std::string> sockets = BoundSockets();
  noted_ = Processes();
  for (const pid_t pid : noted_) {
    std::error_code error;
    for (const auto& entry : fs::directory_iterator(absl::StrCat("/proc/", pid, "/fd"), error)) {
      std::string target = Target(entry.path());
      if (absl::StartsWith(target, "/dev/shm/")) held_paths_.insert(target);
      absl::string_view inode = target;
      if (!absl::ConsumePrefix(&inode, "socket:[") || !absl::ConsumeSuffix(&inode, "]")) continue;
      const auto socket = sockets.find(std::string(inode));
      if (socket != sockets.end()) held_paths_.insert(socket->second);
    }
  }
}

int Daemon::Stop(int signal) {
  NoteHoldings();
  process_->Signal(signal);
  const int code = process_->Finish(kStopDeadline);
  ExpectNoProcessLeft();
  if (signal != SIGKILL) ExpectNoFileLeft();
  return code;
}

void Daemon::ExpectNoProcessLeft() const {
  std::set<pid_t> processes;
  if (!WaitUntil(kLeftoverDeadline, [&] {
        processes = Processes();
        // A process whose first thread is gone shows no environment any more.
        std::copy_if(noted_.begin(), noted_.end(), std::inserter(processes, processes.end()),
                     IsAlive);
        return processes.empty();
      })) {
    ADD_FAILURE() << "processes outlive their daemon: " << absl::StrJoin(processes, " ");
    for (const pid_t pid : processes) kill(pid, SIGKILL);
  }
}

void Daemon::ExpectNoFileLeft() const {
  for (const std::string& path : held_paths_) {
    EXPECT_TRUE(WaitUntil(kLeftoverDeadline, [&] { return !fs::exists(path); }))
        << path << " is left";
    const fs::path folder = fs::path(path).parent_path();
    if (folder == "/tmp" || folder == "/dev/shm" || folder == temporary_folder_ ||
        folder == options_.state_dir) {
      continue;
    }
    EXPECT_FALSE(fs::exists(folder)) << folder << " is left";
  }
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(temporary_folder_, error)) {
    ADD_FAILURE() << entry.path() << " is left";
  }
}

}  // namespace regroup::harness
