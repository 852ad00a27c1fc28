#include "daemon/node/worker_end.h"

#include <cstring>

#include "absl/strings/str_cat.h"

namespace regroup {
namespace {

constexpr size_t kMostTailLines = 3;
constexpr size_t kMostTailBytes = 400;

std::string SignalName(int signal) {
  const char* name = sigabbrev_np(signal);
  return name != nullptr ? absl::StrCat("SIG", name) : absl::StrCat("signal ", signal);
}

}  // namespace

std::string Describe(const WorkerEnd& end) {
  return absl::StrCat("rank ", end.rank, " (pid ", end.pid, ") ", end.reason,
                      end.reason.empty() ? "" : " and ",
                      end.signaled ? absl::StrCat("was killed by ", SignalName(end.code))
                                   : absl::StrCat("exited with status ", end.code));
}

std::string DescribeWithTail(const WorkerEnd& end, const std::vector<std::string>& stderr_lines) {
  std::string tail;
  const size_t first =
      stderr_lines.size() > kMostTailLines ? stderr_lines.size() - kMostTailLines : 0;
  for (size_t i = first; i < stderr_lines.size(); ++i) {
    absl::StrAppend(&tail, tail.empty() ? "" : " | ", stderr_lines[i]);
  }
  if (tail.size() > kMostTailBytes) tail = "..." + tail.substr(tail.size() - kMostTailBytes);
  return tail.empty() ? Describe(end) : absl::StrCat(Describe(end), "; it wrote last: ", tail);
}

}  // namespace regroup
