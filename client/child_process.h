// Runs a program of this build and reads what it prints.
#ifndef CLIENT_CHILD_PROCESS_H_
#define CLIENT_CHILD_PROCESS_H_

#include <sys/types.h>

#include <string>
#include <vector>

namespace regroup {

// One thread at a time. A child that still runs at the end is killed.
class ChildProcess {
 public:
  struct Options {
    std::vector<std::string> environment;  // NAME=VALUE, nothing else is passed on
    bool terminal = false;                 // stdout and stderr are one terminal, read by out()
    std::string folder;                    // working folder, "" = ours
  };

  ChildProcess(const std::string& program, const std::vector<std::string>& arguments,
               const Options& options);
  ~ChildProcess();
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  void Send(int signal) const;

  // Reads until stdout contains `text`; false at its end or after 30 s.
  bool WaitForOutput(const std::string& text);

  // What the child writes to stdout from now on, fails.
  void CloseOutput();

  // Reads to the end and returns the exit code, -1 if the child was killed by a signal or by us
  // after 30 s.
  int Wait();

  const std::string& out() const { return out_; }
  const std::string& err() const { return err_; }

 private:
  // Reads what is there; false when both pipes have ended or nothing came before the deadline.
  bool ReadSome();

  pid_t pid_ = -1;
  int out_fd_ = -1;
  int err_fd_ = -1;
  std::string out_;
  std::string err_;
};

}  // namespace regroup

#endif  // CLIENT_CHILD_PROCESS_H_
