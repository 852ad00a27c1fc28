#include "engine/zero/trace_recorder.h"

namespace regroup {

void TraceRecorder::BeginPass() {
  pass_.clear();
  following_ = !trace_.empty();
}

void TraceRecorder::Record(const TraceEntry& entry) {
  if (following_ && (pass_.size() >= trace_.size() || !(trace_[pass_.size()] == entry))) {
    following_ = false;
    absl::MutexLock lock(&mutex_);
    snapshot_.state = TraceState::kRecording;
  }
  pass_.push_back(entry);
}

std::optional<int> TraceRecorder::NextGather() const {
  if (!following_) return std::nullopt;
  for (size_t i = pass_.size(); i < trace_.size(); ++i) {
    if (trace_[i].op == TraceOp::kGather) return trace_[i].unit;
  }
  return std::nullopt;
}

void TraceRecorder::EndPass() {
  if (pass_ == trace_ && following_) return;
  trace_ = pass_;
  absl::MutexLock lock(&mutex_);
  snapshot_.state = TraceState::kAgreed;
  snapshot_.entries = trace_;
  ++snapshot_.records;
}

void TraceRecorder::CountGather(bool ahead) {
  absl::MutexLock lock(&mutex_);
  ++snapshot_.gathers;
  if (ahead) ++snapshot_.prefetches;
}

void TraceRecorder::CountReduction() {
  absl::MutexLock lock(&mutex_);
  ++snapshot_.reductions;
}

TraceSnapshot TraceRecorder::Snapshot() const {
  absl::MutexLock lock(&mutex_);
  return snapshot_;
}

}  // namespace regroup
