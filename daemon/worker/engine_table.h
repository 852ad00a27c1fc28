// The engines that a worker holds, and what threads beside the executor may see of them.
#ifndef DAEMON_WORKER_ENGINE_TABLE_H_
#define DAEMON_WORKER_ENGINE_TABLE_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "engine/data/dataset.h"
#include "engine/group/group.h"
#include "engine/group/rendezvous.h"
#include "engine/infer/inference_engine.h"
#include "engine/layout/engine_spec.h"
#include "engine/model/load.h"
#include "engine/relayout/move.h"
#include "engine/train/trainer.h"
#include "regroup/v1/worker.pb.h"

namespace regroup {

class HeldEngine;

// A move of which this rank is a part, from its preparation to its commit or roll-back. Executor
// only.
struct PendingMove {
  bool is_sync = false;
  uint64_t destination_uid = 0;  // sync: the inference engine
  MoveOptions options;
  int64_t generation = 0;                      // that the commit will make
  bool verified = false;                       // the run succeeded: the rest of this is complete
  bool began = false;                          // the run, which can't be said twice
  std::unique_ptr<Group> partition_group;      // relayout: over the new ranks
  std::shared_ptr<HeldEngine> next;            // relayout: the engine on its new layout
  std::unique_ptr<InferenceEngine> inference;  // sync: with the new weights
};

// One engine on this rank. The executor thread owns it; the methods below the line are for all
// threads and wait for nothing but each other.
class HeldEngine {
 public:
  // A guest takes part in a move but holds nothing of the engine.
  HeldEngine(EngineSpec spec, std::shared_ptr<LoadedModel> model,
             std::vector<std::string> content_terms, bool is_guest = false);

  // A trainer's hooks point to its model, so the model goes last.
  // The executor changes its settings (learning rate, checks, timeout); other threads read the
  // rest.
  EngineSpec spec;
  const std::shared_ptr<LoadedModel> model;
  const std::vector<std::string> content_terms;  // of the weight source
  const bool is_guest;

  // ---- Executor thread only.
  absl::Status failure;  // once not OK, the engine can only be dropped
  std::unique_ptr<InferenceEngine> inference;
  std::unique_ptr<Group>
      creation_group;  // inference: closing it earlier could disturb slower members
  std::shared_ptr<const Dataset> data;  // checked last
  int64_t batch = 0;                    // rows
  int64_t accumulate = 1;               // micro-batches that they make
  std::unique_ptr<PendingMove> pending;
  bool formed() const { return trainer() != nullptr || inference != nullptr; }

  // ---- Any thread.
  const ParamTable& table() const { return model->model->table(); }

  void SetTrainer(std::unique_ptr<Trainer> trainer) ABSL_LOCKS_EXCLUDED(mutex_);
  std::shared_ptr<Trainer> trainer() const ABSL_LOCKS_EXCLUDED(mutex_);

  // The trainer's, or what was set for an inference engine.
  MemoryUse memory() const ABSL_LOCKS_EXCLUDED(mutex_);
  void SetMemory(const MemoryUse& memory) ABSL_LOCKS_EXCLUDED(mutex_);

  // nullptr ends the move; an abort of it is forgotten then.
  void SetMove(std::shared_ptr<Move> move) ABSL_LOCKS_EXCLUDED(mutex_);
  std::shared_ptr<Move> move() const ABSL_LOCKS_EXCLUDED(mutex_);

  // Makes what the engine waits for, now and later, fail with `reason`: its pending move, if any,
  // and unless `move_only` the engine itself.
  void Abort(const absl::Status& reason, bool move_only) ABSL_LOCKS_EXCLUDED(mutex_);

  // The reason of the abort of what runs now: of the engine, or of its move. OK if there is none.
  absl::Status aborted() const ABSL_LOCKS_EXCLUDED(mutex_);

  // An inference engine is whole after any abort: what comes later has nothing to do with it.
  void ForgetAbort() ABSL_LOCKS_EXCLUDED(mutex_);

  // What a primary that restarts has to know; brought up to date by the executor.
  void SetStanding(v1::Standing standing) ABSL_LOCKS_EXCLUDED(mutex_);
  void SetRunning(const std::string& command) ABSL_LOCKS_EXCLUDED(mutex_);
  v1::Standing standing() const ABSL_LOCKS_EXCLUDED(mutex_);

  // Progress of the running command.
  std::atomic<int64_t> bytes_done{0};
  std::atomic<int64_t> bytes_total{0};

 private:
  friend class AbortHook;

  mutable absl::Mutex mutex_;
  std::shared_ptr<Trainer> trainer_ ABSL_GUARDED_BY(mutex_);
  MemoryUse memory_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<Move> move_ ABSL_GUARDED_BY(mutex_);
  std::function<void(const absl::Status&)> abort_hook_ ABSL_GUARDED_BY(mutex_);
  v1::Standing standing_ ABSL_GUARDED_BY(mutex_);
  std::string running_ ABSL_GUARDED_BY(mutex_);
  absl::Status engine_abort_ ABSL_GUARDED_BY(mutex_);
  absl::Status move_abort_ ABSL_GUARDED_BY(mutex_);
};

// While it lives, an abort of the engine calls `hook`, from any thread; one that came before calls
// it at once. For what belongs to neither the trainer nor the move yet. One at a time; `hook` must
// not block.
class AbortHook {
 public:
  AbortHook(HeldEngine* engine, std::function<void(const absl::Status&)> hook);
  ~AbortHook();
  AbortHook(const AbortHook&) = delete;
  AbortHook& operator=(const AbortHook&) = delete;

 private:
  HeldEngine* engine_;
};

// Thread safe. Nothing is destroyed under its lock.
class EngineTable {
 public:
  std::shared_ptr<HeldEngine> Find(uint64_t uid) const ABSL_LOCKS_EXCLUDED(mutex_);
  void Put(uint64_t uid, std::shared_ptr<HeldEngine> engine) ABSL_LOCKS_EXCLUDED(mutex_);
  void Erase(uint64_t uid) ABSL_LOCKS_EXCLUDED(mutex_);
  std::vector<std::shared_ptr<HeldEngine>> List() const ABSL_LOCKS_EXCLUDED(mutex_);

  // The store at which an engine's groups meet, one an engine: a new one replaces the old, nullptr
  // ends it.
  void SetRendezvous(uint64_t uid, std::unique_ptr<RendezvousServer> server)
      ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  mutable absl::Mutex mutex_;
  std::map<uint64_t, std::shared_ptr<HeldEngine>> engines_ ABSL_GUARDED_BY(mutex_);
  std::map<uint64_t, std::unique_ptr<RendezvousServer>> rendezvous_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace regroup

#endif  // DAEMON_WORKER_ENGINE_TABLE_H_
