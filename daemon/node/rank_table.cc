#include "daemon/node/rank_table.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/rpc_status.h"

namespace regroup {
namespace {

constexpr absl::Duration kStopCheck = absl::Milliseconds(100);

absl::Status NotReadyError(const RankInfo& info) {
  v1::ErrorDetail detail;
  detail.set_reason(v1::ERROR_REASON_RANK_LOST);
  detail.add_ranks(info.rank);
  return MakeError(
      absl::StatusCode::kUnavailable,
      absl::StrCat("rank ", info.rank, " is not ready (it is ",
                   info.state == v1::RANK_STATE_LOST ? "LOST" : "STARTING", ")",
                   info.error.empty() ? "" : absl::StrCat("; its last process: ", info.error)),
      detail);
}

}  // namespace

RankTable::RankTable(int ranks) : slots_(ranks) {
  for (int rank = 0; rank < ranks; ++rank) slots_[rank].info.rank = rank;
}

RankTable::Slot* RankTable::Current(const WorkerRef& ref) {
  if (ref.rank < 0 || ref.rank >= size()) return nullptr;
  Slot& slot = slots_[ref.rank];
  return slot.client != nullptr && slot.client->ref() == ref ? &slot : nullptr;
}

const RankTable::Slot* RankTable::Current(const WorkerRef& ref) const {
  if (ref.rank < 0 || ref.rank >= size()) return nullptr;
  const Slot& slot = slots_[ref.rank];
  return slot.client != nullptr && slot.client->ref() == ref ? &slot : nullptr;
}

void RankTable::Started(std::shared_ptr<WorkerClient> client, int pid) {
  absl::MutexLock lock(&mutex_);
  Slot& slot = slots_[client->ref().rank];
  slot.info.state = v1::RANK_STATE_STARTING;
  slot.info.pid = pid;
  slot.info.incarnation = client->ref().incarnation;
  slot.info.rss_bytes = 0;
  slot.state.Clear();
  slot.client = std::move(client);
}

void RankTable::Ready(const WorkerRef& ref) {
  absl::MutexLock lock(&mutex_);
  if (Slot* slot = Current(ref)) slot->info.state = v1::RANK_STATE_READY;
}

void RankTable::Answered(const WorkerRef& ref, v1::WorkerState state) {
  absl::MutexLock lock(&mutex_);
  Slot* slot = Current(ref);
  // Answers to two questions may overtake each other.
  if (slot != nullptr && state.commands_done() >= slot->state.commands_done()) {
    slot->info.rss_bytes = state.rss_bytes();
    slot->state = std::move(state);
  }
}

void RankTable::Lost(const WorkerRef& ref, const std::string& how, const std::string& error) {
  std::shared_ptr<WorkerClient> client;
  {
    absl::MutexLock lock(&mutex_);
    Slot* slot = Current(ref);
    if (slot == nullptr) return;
    client = std::move(slot->client);
    slot->client = nullptr;
    slot->info.state = v1::RANK_STATE_LOST;
    slot->info.pid = 0;
    slot->info.rss_bytes = 0;
    slot->info.error = error;
    slot->info.ended = absl::Now();
    slot->how = how;
    slot->state.Clear();
  }
  if (listener_) listener_(ref, how);
  client->Lost(how);
}

void RankTable::SetLostListener(LostListener listener) { listener_ = std::move(listener); }

std::vector<RankInfo> RankTable::List() const {
  absl::MutexLock lock(&mutex_);
  std::vector<RankInfo> result;
  result.reserve(slots_.size());
  for (const Slot& slot : slots_) result.push_back(slot.info);
  return result;
}

absl::StatusOr<std::shared_ptr<WorkerClient>> RankTable::Find(const WorkerRef& ref) const {
  absl::MutexLock lock(&mutex_);
  if (const Slot* slot = Current(ref)) return slot->client;
  const bool known = ref.rank >= 0 && ref.rank < size() && !slots_[ref.rank].how.empty();
  return RankLostError(
      ref.rank, known ? slots_[ref.rank].how : absl::StrCat("rank ", ref.rank, " has no process"));
}

bool RankTable::AwaitLost(const WorkerRef& ref, absl::Time deadline) const {
  absl::MutexLock lock(&mutex_);
  const auto lost = [&]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return Current(ref) == nullptr; };
  return mutex_.AwaitWithDeadline(absl::Condition(&lost), deadline);
}

absl::StatusOr<std::vector<WorkerRef>> RankTable::AwaitReady(
    absl::Span<const int> ranks, absl::Time deadline,
    absl::FunctionRef<absl::Status()> stop) const {
  for (int rank : ranks) {
    if (rank < 0 || rank >= size()) {
      return absl::NotFoundError(absl::StrCat("rank ", rank, " does not exist"));
    }
  }
  const auto first_unready = [this, &ranks]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
    return std::find_if(ranks.begin(), ranks.end(), [this](int rank) {
      mutex_.AssertReaderHeld();
      return slots_[rank].info.state != v1::RANK_STATE_READY;
    });
  };
  while (true) {
    if (absl::Status status = stop(); !status.ok()) return status;
    absl::MutexLock lock(&mutex_);
    const auto all_ready = [&]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
      return first_unready() == ranks.end();
    };
    const absl::Time wake = std::min(deadline, absl::Now() + kStopCheck);
    if (mutex_.AwaitWithDeadline(absl::Condition(&all_ready), wake)) {
      std::vector<WorkerRef> result;
      for (int rank : ranks) result.push_back(slots_[rank].client->ref());
      return result;
    }
    if (absl::Now() >= deadline) return NotReadyError(slots_[*first_unready()].info);
  }
}

absl::optional<v1::HeldEngine> RankTable::Held(const WorkerRef& ref, uint64_t engine_uid) const {
  absl::MutexLock lock(&mutex_);
  const Slot* slot = Current(ref);
  if (slot == nullptr) return absl::nullopt;
  for (const v1::HeldEngine& engine : slot->state.engines()) {
    if (engine.uid() == engine_uid) return engine;
  }
  return absl::nullopt;
}

void RankTable::EndUndecided(absl::Time now) {
  std::vector<std::shared_ptr<WorkerClient>> clients;
  {
    absl::MutexLock lock(&mutex_);
    for (const Slot& slot : slots_) {
      if (slot.client != nullptr) clients.push_back(slot.client);
    }
  }
  for (const auto& client : clients) client->EndUndecided(now);
}

}  // namespace regroup
