#include "tests/system/process.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"

namespace regroup::harness {
namespace {

constexpr absl::Duration kPoll = absl::Milliseconds(5);

int ExitCode(int wait_status) {
  return WIFEXITED(wait_status) ? WEXITSTATUS(wait_status) : 128 + WTERMSIG(wait_status);
}

std::string TestFolder() {
  const char* folder = getenv("TEST_TMPDIR");
  return folder != nullptr ? folder : std::filesystem::temp_directory_path().string();
}

std::string UniquePath(const std::string& name) {
  static std::atomic<int> counter{0};
  return absl::StrCat(TestFolder(), "/", name, "-", getpid(), "-", counter++);
}

std::vector<char*> Pointers(const std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  pointers.reserve(strings.size() + 1);
  for (const std::string& string : strings) pointers.push_back(const_cast<char*>(string.c_str()));
  pointers.push_back(nullptr);
  return pointers;
}

}  // namespace

bool WaitUntil(absl::Duration deadline, const std::function<bool()>& condition) {
  const absl::Time end = absl::Now() + deadline;
  while (true) {
    if (condition()) return true;
    if (absl::Now() >= end) return false;
    absl::SleepFor(kPoll);
  }
}

std::string Runfile(const std::string& path) {
  std::vector<std::string> roots;
  if (const char* folder = getenv("TEST_SRCDIR")) roots.push_back(absl::StrCat(folder, "/regroup"));
  std::error_code error;
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", error);
  roots.push_back(self.string() + ".runfiles/regroup");
  roots.emplace_back("bazel-bin");
  for (const std::string& root : roots) {
    std::string candidate = absl::StrCat(root, "/", path);
    if (std::filesystem::exists(candidate, error)) return candidate;
  }
  ADD_FAILURE() << path << " is in none of " << absl::StrJoin(roots, ", ");
  return path;
}

std::string NewFolder(const std::string& name) {
  std::string path = UniquePath(name);
  std::filesystem::create_directories(path);
  return path;
}

std::string NewShortFolder() {
  std::string path = "/tmp/rgtest.XXXXXX";
  if (mkdtemp(path.data()) == nullptr) ADD_FAILURE() << "mkdtemp: " << strerror(errno);
  return path;
}

std::string ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

void WriteFile(const std::string& path, const std::string& contents) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << contents;
  if (!file.flush()) ADD_FAILURE() << "cannot write " << path;
}

std::vector<std::string> SplitLines(const std::string& text) {
  std::vector<std::string> lines = absl::StrSplit(text, '\n');
  lines.pop_back();  // after the last newline: nothing, or a line that is not complete yet
  return lines;
}

std::unique_ptr<Process> Process::Start(const std::vector<std::string>& argv,
                                        const std::vector<std::string>& environment) {
  auto process = std::unique_ptr<Process>(new Process);
  process->argv_ = argv;
  const std::string captured = UniquePath("process");
  process->output_path_ = captured + ".out";
  process->errors_path_ = captured + ".err";

  std::vector<std::string> variables = environment;
  for (char** variable = environ; *variable != nullptr; ++variable)
    variables.emplace_back(*variable);
  const std::vector<char*> arguments = Pointers(argv);
  const std::vector<char*> variable_pointers = Pointers(variables);
  const int input = open("/dev/null", O_RDONLY | O_CLOEXEC);
  const int output =
      open(process->output_path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  const int errors =
      open(process->errors_path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid == 0) {  // only async-signal-safe calls until exec
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(127);
    dup2(input, STDIN_FILENO);
    dup2(output, STDOUT_FILENO);
    dup2(errors, STDERR_FILENO);
    execve(arguments[0], arguments.data(), variable_pointers.data());
    _exit(127);
  }
  for (int descriptor : {input, output, errors}) close(descriptor);
  if (pid < 0) {
    ADD_FAILURE() << "fork: " << strerror(errno);
    return nullptr;
  }
  process->pid_ = pid;
  return process;
}

Process::~Process() {
  if (Running()) {
    kill(pid_, SIGKILL);
    Wait(absl::InfiniteDuration());
  }
  std::error_code error;
  std::filesystem::remove(output_path_, error);
  std::filesystem::remove(errors_path_, error);
}

bool Process::Running() {
  if (exit_.has_value()) return false;
  int status = 0;
  if (waitpid(pid_, &status, WNOHANG) != pid_) return true;
  exit_ = ExitCode(status);
  return false;
}

void Process::Signal(int signal) const {
  if (!exit_.has_value()) kill(pid_, signal);
}

std::optional<int> Process::Wait(absl::Duration deadline) {
  WaitUntil(deadline, [this] { return !Running(); });
  return exit_;
}

int Process::Finish(absl::Duration deadline) {
  const std::optional<int> code = Wait(deadline);
  if (code.has_value()) return *code;
  ADD_FAILURE() << absl::StrJoin(argv_, " ") << "\nstill runs after "
                << absl::FormatDuration(deadline) << "\nstdout so far: " << Output()
                << "\nstderr so far: " << Errors();
  kill(pid_, SIGKILL);
  return *Wait(absl::InfiniteDuration());
}

bool IsAlive(pid_t pid) {
  const std::string folder = absl::StrCat("/proc/", pid);
  const std::string stat = ReadFile(folder + "/stat");
  const size_t name_end = stat.rfind(')');
  if (name_end == std::string::npos || name_end + 2 >= stat.size()) return false;
  const char state = stat[name_end + 2];
  if (state != 'Z' && state != 'X') return true;
  // The first thread may be gone while others still hold files open.
  std::error_code error;
  const std::filesystem::directory_iterator tasks(folder + "/task", error);
  return std::distance(begin(tasks), end(tasks)) > 1;
}

}  // namespace regroup::harness
