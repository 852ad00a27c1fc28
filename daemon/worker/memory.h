// How much memory an engine needs on one rank, and how much the machine has.
#ifndef DAEMON_WORKER_MEMORY_H_
#define DAEMON_WORKER_MEMORY_H_

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "engine/layout/engine_spec.h"
#include "engine/layout/layout.h"
#include "engine/layout/param_table.h"

namespace regroup {

// Bytes that one rank of `layout` holds, padding included: the weights, and `fp32_tensors` tensors
// of fp32 beside them (moments, master copy).
int64_t StateBytes(const ParamTable& table, const Layout& layout, int fp32_tensors);

// Of a trainer: the moments of `optimizer`, and the master copy of weights that are not fp32.
int TrainerTensors(const ParamTable& table, const OptimizerSpec& optimizer);

// Bytes beside the state that a trainer needs on one rank: the reduced gradients of its shards, two
// gather buffers and three gradient buffers of the largest unit.
int64_t TrainerBufferBytes(const ParamTable& table, const Layout& layout);

// Bytes beside them that a step of `accumulate` micro-batches needs on one rank: `activations` of
// one of them, and if there are several two fp32 buffers of the largest shard, for gradients that
// are on their way to be added to those of the micro-batches before.
int64_t StepBytes(const ParamTable& table, const Layout& layout, int64_t activations,
                  int64_t accumulate);

// What this process can still take: MemAvailable of the machine, or what its control groups leave
// if that is less, and what it holds without using it. -1 if neither can be read.
int64_t AvailableMemoryBytes();

// AvailableMemoryBytes once it is `needed` or more, at the latest after the seconds within which
// the workers of the machine give back what they freed (kFreedMemoryHeld); at once if the machine
// has less than `needed` in all.
int64_t AwaitMemoryBytes(int64_t needed);

// What `probe` returns, as soon as that is `needed` or more, or negative; at the latest after
// `patience`.
int64_t AwaitAtLeast(int64_t needed, absl::Duration patience,
                     const std::function<int64_t()>& probe);

// What is left of the tightest memory limit of the control groups (v1 or v2) that `self` names (the
// content of /proc/self/cgroup) and of their ancestors, mounted under `mount`; -1 if none has a
// limit. Page cache that can be dropped is not counted as used.
int64_t ControlGroupBytes(absl::string_view self, const std::string& mount);

// Resident memory of this process; -1 if it cannot be read.
int64_t ResidentBytes();

// RESOURCE_EXHAUSTED (reason MEMORY) with both numbers if `needed` bytes are more than `available`;
// an unknown `available` (-1) admits. `what` starts the message: who needs it.
absl::Status AdmitMemory(absl::string_view what, int64_t needed, int64_t available);

}  // namespace regroup

#endif  // DAEMON_WORKER_MEMORY_H_
