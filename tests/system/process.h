// Child processes and small files of the whole-system tests. Nothing here knows what a daemon is.
#ifndef TESTS_SYSTEM_PROCESS_H_
#define TESTS_SYSTEM_PROCESS_H_

#include <sys/types.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"

namespace regroup::harness {

// Asks `condition` again and again, with short waits, until it is true or `deadline` has passed.
// Returns whether it became true.
bool WaitUntil(absl::Duration deadline, const std::function<bool()>& condition);

// The path of a file that this test depends on, such as "daemon/regroupd".
std::string Runfile(const std::string& path);

// A new, empty folder of this test (under TEST_TMPDIR); `name` starts its last component.
std::string NewFolder(const std::string& name);

// A new, empty folder whose path is short: directly under /tmp. The caller removes it.
std::string NewShortFolder();

std::string ReadFile(const std::string& path);  // "" if it cannot be read
void WriteFile(const std::string& path, const std::string& contents);
std::vector<std::string> SplitLines(const std::string& text);  // complete lines only

// A child that is killed when this object or this process goes away. One thread at a time; start it
// from a thread that outlives it (the parent-death signal follows the thread).
class Process {
 public:
  // Starts argv[0] with NAME=VALUE pairs added to this process's environment. Standard output and
  // error go to files of their own. Returns nullptr (and fails the test) if it cannot be started.
  static std::unique_ptr<Process> Start(const std::vector<std::string>& argv,
                                        const std::vector<std::string>& environment = {});
  ~Process();

  pid_t pid() const { return pid_; }
  bool Running();
  void Signal(int signal) const;

  // The exit code, or 128 + the signal that ended it; nullopt if it still runs after `deadline`.
  std::optional<int> Wait(absl::Duration deadline);

  // As Wait, but kills it when the deadline passes, and fails the test.
  int Finish(absl::Duration deadline);

  std::string Output() const { return ReadFile(output_path_); }
  std::string Errors() const { return ReadFile(errors_path_); }
  std::vector<std::string> OutputLines() const { return SplitLines(Output()); }

 private:
  Process() = default;

  std::vector<std::string> argv_;
  std::string output_path_;
  std::string errors_path_;
  pid_t pid_ = -1;
  std::optional<int> exit_;
};

// Whether a process of this id exists and is not a zombie, down to its last thread.
bool IsAlive(pid_t pid);

}  // namespace regroup::harness

#endif  // TESTS_SYSTEM_PROCESS_H_
