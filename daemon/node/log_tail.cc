#include "daemon/node/log_tail.h"

namespace regroup {

void LogTail::Append(absl::string_view bytes, absl::FunctionRef<void(const std::string&)> line) {
  for (const char c : bytes) {
    if (c != '\n') partial_.push_back(c);
    if (c == '\n' || partial_.size() >= kMaxLineBytes) Flush(line);
  }
}

void LogTail::Flush(absl::FunctionRef<void(const std::string&)> line) {
  if (partial_.empty()) return;
  line(partial_);
  lines_.push_back(std::move(partial_));
  partial_.clear();
  if (lines_.size() > kMaxLines) lines_.pop_front();
}

}  // namespace regroup
