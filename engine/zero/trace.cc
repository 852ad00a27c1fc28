#include "engine/zero/trace.h"

#include "absl/strings/str_cat.h"

namespace regroup {

bool operator==(const TraceEntry& a, const TraceEntry& b) {
  return a.op == b.op && a.backward == b.backward && a.unit == b.unit && a.bytes == b.bytes;
}

std::vector<std::string> DescribeTrace(const std::vector<TraceEntry>& entries) {
  std::vector<std::string> lines;
  lines.reserve(entries.size());
  for (const TraceEntry& entry : entries) {
    lines.push_back(absl::StrCat(entry.backward ? "backward " : "forward ",
                                 entry.op == TraceOp::kGather ? "gather" : "reduce", " unit ",
                                 entry.unit, " ", entry.bytes, " bytes"));
  }
  return lines;
}

}  // namespace regroup
