// The command line of regroupd.
#ifndef DAEMON_FLAGS_H_
#define DAEMON_FLAGS_H_

#include <string>
#include <vector>

namespace regroup {

struct DaemonFlags {
  std::string node;
  std::string host;  // an IPv6 address without brackets
  int port = 0;      // 0 = a free one
  int ranks = 0;
  int first_rank = -1;    // -1 = not given
  std::string advertise;  // "" = not given
  std::string join_host;  // "" = this is a primary; an IPv6 address without brackets
  int join_port = 0;
  std::string device = "cpu";
  std::string state_dir;  // "" = the default one
  std::vector<std::string> data_roots;
  bool insecure = false;
};

struct ParsedFlags {
  DaemonFlags flags;
  bool run = false;   // else: print `text` and exit with `exit_code`
  int exit_code = 0;  // 0 --help; 1 not available in this version; 2 it does not parse
  std::string text;   // for stdout if exit_code is 0, else for stderr
};

// Reads no file and no environment. Errors name the flag, the value seen and what is allowed.
ParsedFlags ParseFlags(int argc, const char* const* argv);

}  // namespace regroup

#endif  // DAEMON_FLAGS_H_
