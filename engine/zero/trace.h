// The recorded order of units of one kind of pass.
#ifndef ENGINE_ZERO_TRACE_H_
#define ENGINE_ZERO_TRACE_H_

#include <cstdint>
#include <string>
#include <vector>

namespace regroup {

enum class TraceOp { kGather, kReduce };
enum class TraceState { kRecording, kAgreed };

struct TraceEntry {
  TraceOp op = TraceOp::kGather;
  bool backward = false;
  int unit = 0;  // engine-local
  int64_t bytes = 0;
};

bool operator==(const TraceEntry& a, const TraceEntry& b);

// A copy of a trace for people and tests, with counters since create.
struct TraceSnapshot {
  std::string kind;  // "train", "train accumulate=2", "decode"
  TraceState state = TraceState::kRecording;
  int64_t records = 0;
  int64_t gathers = 0;
  int64_t prefetches = 0;
  int64_t reductions = 0;
  std::vector<TraceEntry> entries;
};

// One line an entry: "forward gather 3". Ranks agree on these.
std::vector<std::string> DescribeTrace(const std::vector<TraceEntry>& entries);

}  // namespace regroup

#endif  // ENGINE_ZERO_TRACE_H_
