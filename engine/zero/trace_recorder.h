// Records the order of fetches and reductions of each pass and, once the group agreed on it, tells
// what comes next.
#ifndef ENGINE_ZERO_TRACE_RECORDER_H_
#define ENGINE_ZERO_TRACE_RECORDER_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "engine/zero/trace.h"

namespace regroup {

//              BeginPass            EndPass(agreed by the group)
//   kRecording ----------> records  -----------------------------> kAgreed
//   kAgreed    ----------> follows  -----------------------------> kAgreed
//                            | another entry than the trace's
//                            v
//                          records  -----------------------------> kAgreed (records + 1)
//
// The pass runs on one thread; Snapshot may be called from any.
class TraceRecorder {
 public:
  explicit TraceRecorder(const std::string& kind) : kind_(kind) { snapshot_.kind = kind; }

  const std::string& kind() const { return kind_; }

  void BeginPass();

  // Appends what is about to be issued; a pass that leaves the agreed trace is recorded again from
  // there.
  void Record(const TraceEntry& entry);

  // True while this pass has no agreed trace to follow: everything it issues is checked.
  bool recording() const { return !following_; }

  // The unit of the next gather of the agreed trace; nullopt while recording or at the end.
  std::optional<int> NextGather() const;

  // What this pass issued so far: the group agrees on it before anything is applied.
  const std::vector<TraceEntry>& pass() const { return pass_; }

  // The group agreed on pass(): it is the trace from now on.
  void EndPass();

  void CountGather(bool ahead);
  void CountReduction();
  TraceSnapshot Snapshot() const;

 private:
  const std::string kind_;
  std::vector<TraceEntry> pass_;
  std::vector<TraceEntry> trace_;  // agreed
  bool following_ = false;

  mutable absl::Mutex mutex_;
  TraceSnapshot snapshot_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace regroup

#endif  // ENGINE_ZERO_TRACE_RECORDER_H_
