// How a worker process ended, in words.
#ifndef DAEMON_NODE_WORKER_END_H_
#define DAEMON_NODE_WORKER_END_H_

#include <string>
#include <vector>

namespace regroup {

struct WorkerEnd {
  int rank = 0;
  int pid = 0;
  bool signaled = false;
  int code = 0;        // the signal's number, or the exit status
  std::string reason;  // why the daemon killed it, "" if it did not: "did not answer for 10s"
};

// "rank 2 (pid 123) was killed by SIGKILL", "rank 2 (pid 123) exited with status 3",
// "rank 2 (pid 123) did not answer for 10s and was killed by SIGKILL".
std::string Describe(const WorkerEnd& end);

// Describe(end), and what the process wrote last to its standard error, on one line and cut to a
// few hundred bytes.
std::string DescribeWithTail(const WorkerEnd& end, const std::vector<std::string>& stderr_lines);

}  // namespace regroup

#endif  // DAEMON_NODE_WORKER_END_H_
