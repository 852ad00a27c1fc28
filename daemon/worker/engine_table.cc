#include "daemon/worker/engine_table.h"

#include <utility>

namespace regroup {

HeldEngine::HeldEngine(EngineSpec spec, std::shared_ptr<LoadedModel> model,
                       std::vector<std::string> content_terms, bool is_guest)
    : spec(std::move(spec)),
      model(std::move(model)),
      content_terms(std::move(content_terms)),
      is_guest(is_guest) {}

void HeldEngine::SetTrainer(std::unique_ptr<Trainer> trainer) {
  absl::MutexLock lock(&mutex_);
  // A thread that looks at the trainer may be the last to let go of it: the model has to live as
  // long.
  trainer_ = std::shared_ptr<Trainer>(trainer.release(), [model = model](Trainer* t) { delete t; });
  if (!engine_abort_.ok()) trainer_->Abort(engine_abort_);
}

std::shared_ptr<Trainer> HeldEngine::trainer() const {
  absl::MutexLock lock(&mutex_);
  return trainer_;
}

MemoryUse HeldEngine::memory() const {
  std::shared_ptr<Trainer> trainer;
  {
    absl::MutexLock lock(&mutex_);
    if (trainer_ == nullptr) return memory_;
    trainer = trainer_;
  }
  return trainer->memory();
}

void HeldEngine::SetMemory(const MemoryUse& memory) {
  absl::MutexLock lock(&mutex_);
  memory_ = memory;
}

void HeldEngine::SetMove(std::shared_ptr<Move> move) {
  absl::MutexLock lock(&mutex_);
  move_.swap(move);
  move_abort_ = absl::OkStatus();
}

std::shared_ptr<Move> HeldEngine::move() const {
  absl::MutexLock lock(&mutex_);
  return move_;
}

void HeldEngine::SetStanding(v1::Standing standing) {
  absl::MutexLock lock(&mutex_);
  standing_ = std::move(standing);
}

void HeldEngine::SetRunning(const std::string& command) {
  absl::MutexLock lock(&mutex_);
  running_ = command;
}

v1::Standing HeldEngine::standing() const {
  absl::MutexLock lock(&mutex_);
  v1::Standing standing = standing_;
  standing.set_running(running_);
  return standing;
}

void HeldEngine::Abort(const absl::Status& reason, bool move_only) {
  std::shared_ptr<Trainer> trainer;
  std::shared_ptr<Move> move;
  {
    absl::MutexLock lock(&mutex_);
    move = move_;
    if (move == nullptr && move_only) return;
    if (move != nullptr && move_abort_.ok()) move_abort_ = reason;
    if (!move_only) {
      if (engine_abort_.ok()) engine_abort_ = reason;
      trainer = trainer_;
    }
    if (abort_hook_) abort_hook_(reason);
  }
  if (move != nullptr) move->Abort(reason);
  if (trainer != nullptr) trainer->Abort(reason);
}

absl::Status HeldEngine::aborted() const {
  absl::MutexLock lock(&mutex_);
  return engine_abort_.ok() ? move_abort_ : engine_abort_;
}

void HeldEngine::ForgetAbort() {
  absl::MutexLock lock(&mutex_);
  engine_abort_ = absl::OkStatus();
}

AbortHook::AbortHook(HeldEngine* engine, std::function<void(const absl::Status&)> hook)
    : engine_(engine) {
  absl::MutexLock lock(&engine->mutex_);
  engine->abort_hook_ = std::move(hook);
  for (const absl::Status& abort : {engine->engine_abort_, engine->move_abort_}) {
    if (!abort.ok()) engine->abort_hook_(abort);
  }
}

AbortHook::~AbortHook() {
  absl::MutexLock lock(&engine_->mutex_);
  engine_->abort_hook_ = nullptr;
}

std::shared_ptr<HeldEngine> EngineTable::Find(uint64_t uid) const {
  absl::MutexLock lock(&mutex_);
  const auto it = engines_.find(uid);
  return it == engines_.end() ? nullptr : it->second;
}

void EngineTable::Put(uint64_t uid, std::shared_ptr<HeldEngine> engine) {
  absl::MutexLock lock(&mutex_);
  engines_[uid].swap(engine);
}

void EngineTable::Erase(uint64_t uid) {
  std::shared_ptr<HeldEngine> engine;
  absl::MutexLock lock(&mutex_);
  const auto it = engines_.find(uid);
  if (it == engines_.end()) return;
  engine = std::move(it->second);
  engines_.erase(it);
}

std::vector<std::shared_ptr<HeldEngine>> EngineTable::List() const {
  absl::MutexLock lock(&mutex_);
  std::vector<std::shared_ptr<HeldEngine>> engines;
  engines.reserve(engines_.size());
  for (const auto& [uid, engine] : engines_) engines.push_back(engine);
  return engines;
}

void EngineTable::SetRendezvous(uint64_t uid, std::unique_ptr<RendezvousServer> server) {
  absl::MutexLock lock(&mutex_);
  if (server == nullptr) {
    const auto it = rendezvous_.find(uid);
    if (it == rendezvous_.end()) return;
    server = std::move(it->second);
    rendezvous_.erase(it);
  } else {
    rendezvous_[uid].swap(server);
  }
}

}  // namespace regroup
