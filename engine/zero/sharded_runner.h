// ZeRO-3: runs a model whose units are sharded over partition groups. Gathers each unit before its
// use, releases it after, reduces its gradients, and prefetches the next unit along the agreed
// trace (ZeRO, arXiv:1910.02054; the trace is DeepSpeed's idea of a partitioned parameter
// coordinator).
#ifndef ENGINE_ZERO_SHARDED_RUNNER_H_
#define ENGINE_ZERO_SHARDED_RUNNER_H_

#include <ATen/core/Tensor.h>

#include <deque>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "engine/layout/engine_spec.h"
#include "engine/zero/buffer_pool.h"
#include "engine/zero/gradient_reducer.h"
#include "engine/zero/trace_recorder.h"
#include "engine/zero/unit_gatherer.h"
#include "engine/zero/unit_runner.h"

namespace torch::autograd {
struct Node;
}

namespace regroup {

// One thread runs passes; traces() and buffer_bytes() may be called from any. After an error the
// runner can only be destroyed, after the graph of the failed pass.
class ShardedRunner : public UnitRunner {
 public:
  // All pointers outlive the runner.
  // `recompute`: a unit's activations are computed again in backward instead of being kept, except
  // of uses that keep_graph.
  ShardedRunner(const ParamTable* table, const EngineState* state, PartitionGroups groups,
                CheckLevel checks, bool recompute = false);
  ShardedRunner(const ShardedRunner&) = delete;
  ShardedRunner& operator=(const ShardedRunner&) = delete;

  // `kind` ("train", "decode") has a trace of its own: none throws away another's. With
  // `accumulate` the gradients are added to those of the passes before.
  void BeginPass(absl::string_view kind, bool accumulate = false);
  using UnitRunner::Run;
  at::Tensor Run(int unit, const at::Tensor& x, const Body& body, Use use) override;

  // Collective over the partition groups: runs backward from `loss` (a scalar) and reduces the
  // gradients of every unit, used or not. Throws StatusException.
  void Backward(const at::Tensor& loss);

  // Between passes. The same on all ranks: what is checked is exchanged.
  void SetChecks(CheckLevel checks) { checks_ = checks; }

  // The group agreed on pass_trace(): follow it from now on.
  void EndPass() { trace_->EndPass(); }
  const std::vector<TraceEntry>& pass_trace() const { return trace_->pass(); }

  // Of every kind so far, "train" first.
  std::vector<TraceSnapshot> traces() const ABSL_LOCKS_EXCLUDED(traces_mutex_);

  // Collective over the unit's partition group, outside passes: the whole unit, until Release.
  absl::Status Gather(int unit) { return gatherer_.Acquire(unit); }
  void Release(int unit) { gatherer_.Release(unit); }
  absl::Span<const at::Tensor> parameters(int unit) const { return gatherer_.parameters(unit); }

  at::Tensor& gradient_shard(int unit) { return reducer_.shard(unit); }

  // Gather and gradient buffers, and the gradient shards.
  int64_t buffer_bytes() const { return pool_.bytes() + gradient_bytes_; }

 private:
  struct Boundary;  // autograd Function at a unit's input: its backward comes after the unit's

  // What one use of a unit is differentiated by.
  struct Leaves {
    std::vector<at::Tensor> parameters;
    // Hooks live on these nodes; until a graph uses them only this holds them.
    std::vector<std::shared_ptr<torch::autograd::Node>> accumulators;
  };
  Leaves MakeLeaves(int unit);

  at::Tensor RunRecomputed(int unit, const at::Tensor& x, const Body& body);

  TraceRecorder* TraceOf(absl::string_view kind) ABSL_LOCKS_EXCLUDED(traces_mutex_);
  void Fetch(int unit, bool backward);
  void ReleaseUnlessNext(int unit);
  void FinishUse(int unit);
  void ReduceUnit(int unit);
  bool checked() const;

  const ParamTable* table_;
  CheckLevel checks_;
  const bool recompute_;
  BufferPool pool_;
  UnitGatherer gatherer_;
  GradientReducer reducer_;
  std::vector<int> open_uses_;  // by unit: uses of the pass whose backward has not come
  int64_t gradient_bytes_ = 0;

  // Only the thread that runs passes adds to it; what it holds stays where it is.
  std::deque<TraceRecorder> traces_ ABSL_GUARDED_BY(traces_mutex_);
  mutable absl::Mutex traces_mutex_;
  TraceRecorder* trace_;  // of the pass under way, or the last
};

}  // namespace regroup

#endif  // ENGINE_ZERO_SHARDED_RUNNER_H_
