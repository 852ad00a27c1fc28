// A real regroupd with its workers, and regroupctl aimed at it.
#ifndef TESTS_SYSTEM_DAEMON_H_
#define TESTS_SYSTEM_DAEMON_H_

#include <signal.h>
#include <sys/types.h>

#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "nlohmann/json.hpp"
#include "tests/system/process.h"

namespace regroup::harness {

// What one regroupctl call did.
struct CtlResult {
  int exit = -1;
  std::string output;
  std::string errors;

  bool ok() const { return exit == 0; }
  // The lines of the output, each as JSON; lines that are not JSON fail the test.
  std::vector<nlohmann::json> rows() const;
  // The only line.
  nlohmann::json json() const;
};

// regroupctl -o json against one server, unless the arguments say otherwise. Thread compatible.
class Ctl {
 public:
  explicit Ctl(std::string server, std::vector<std::string> prefix = {})
      : server_(std::move(server)), prefix_(std::move(prefix)) {}

  // Runs to the end; longer than `deadline` fails the test.
  CtlResult Run(const std::vector<std::string>& arguments,
                absl::Duration deadline = absl::Seconds(60)) const;

  // As Run, and fails the test unless it exits with 0.
  CtlResult MustRun(const std::vector<std::string>& arguments,
                    absl::Duration deadline = absl::Seconds(60)) const;

  // Runs beside the test.
  std::unique_ptr<Process> Start(const std::vector<std::string>& arguments) const;

  const std::string& server() const { return server_; }

 private:
  std::vector<std::string> Argv(const std::vector<std::string>& arguments) const;

  std::string server_;
  std::vector<std::string> prefix_;  // of each command line
};

// What a process ended by Start of Ctl did.
CtlResult Collect(Process& process, absl::Duration deadline = absl::Seconds(60));

struct DaemonOptions {
  std::vector<std::string> prefix;  // of the command line of the daemon and of its regroupctl
  std::string node = "a";
  std::string join;  // the primary's address, "" = this is one
  int ranks = 4;
  std::string data_root;  // "" = a new folder
  std::string state_dir;  // "" = a new folder
  std::string listen = "127.0.0.1:0";
  std::vector<std::string> flags;  // more of them
};

// The path of the binary and the flags that `options` mean, --data-root and --state-dir as they
// are.
std::vector<std::string> DaemonArgv(const DaemonOptions& options);

// Starts on a free port with folders of its own. When it goes away it is stopped, and the test
// fails if anything of it is left: a process, a socket, a temporary file, shared memory.
class Daemon {
 public:
  // Waits until it listens. nullptr (and fails the test) if it does not.
  static std::unique_ptr<Daemon> Start(DaemonOptions options = {});
  ~Daemon();

  const std::string& address() const { return address_; }
  const std::string& data_root() const { return options_.data_root; }
  const std::string& state_dir() const { return options_.state_dir; }
  Process& process() { return *process_; }
  const Ctl& ctl() const { return *ctl_; }

  // What `rank list` says of a rank; a null json if it says nothing.
  nlohmann::json RankRow(int rank) const;
  // 0 if the rank has no process.
  pid_t WorkerPid(int rank) const;
  // Every process that belongs to this daemon, itself included.
  std::set<pid_t> Processes() const;

  // Waits until `rank` is READY in another process than `old_pid`.
  bool WaitForRestart(int rank, pid_t old_pid, absl::Duration deadline = absl::Seconds(30)) const;

  // Sends `signal`, waits for the end, checks that nothing is left. Returns the exit code. Once.
  // After SIGKILL sockets may be left (the next daemon of the machine removes them), but no
  // process.
  int Stop(int signal = SIGTERM);

  // Sockets and shared memory that its processes had open when it was stopped.
  const std::set<std::string>& held_paths() const { return held_paths_; }

 private:
  explicit Daemon(DaemonOptions options) : options_(std::move(options)) {}
  void NoteHoldings();
  void ExpectNoProcessLeft() const;
  void ExpectNoFileLeft() const;

  DaemonOptions options_;
  std::string mark_;              // in the environment of all of its processes
  std::string temporary_folder_;  // its TMPDIR and XDG_RUNTIME_DIR
  std::string address_;
  std::unique_ptr<Process> process_;
  std::unique_ptr<Ctl> ctl_;
  std::set<std::string> held_paths_;
  std::set<pid_t> noted_;  // the processes of that moment
};

}  // namespace regroup::harness

#endif  // TESTS_SYSTEM_DAEMON_H_
