// Cuts what a process writes into lines, and remembers the last of them.
#ifndef DAEMON_NODE_LOG_TAIL_H_
#define DAEMON_NODE_LOG_TAIL_H_

#include <cstddef>
#include <deque>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/string_view.h"

namespace regroup {

// Bounded: at most kMaxLines lines of kMaxLineBytes bytes. One thread at a time.
class LogTail {
 public:
  static constexpr size_t kMaxLines = 20;
  static constexpr size_t kMaxLineBytes = 1000;  // longer lines are cut into several

  // Takes in `bytes`; calls `line` for each line that they complete.
  void Append(absl::string_view bytes, absl::FunctionRef<void(const std::string&)> line);

  // Completes a last line without newline.
  void Flush(absl::FunctionRef<void(const std::string&)> line);

  // The last complete lines, oldest first.
  std::vector<std::string> Lines() const { return {lines_.begin(), lines_.end()}; }

 private:
  std::string partial_;
  std::deque<std::string> lines_;
};

}  // namespace regroup

#endif  // DAEMON_NODE_LOG_TAIL_H_
