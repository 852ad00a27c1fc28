#include "daemon/node/rank_table.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/layout/rank_list.h"
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
      absl::StrCat("rank ", info.rank, info.node.empty() ? "" : " on node ", info.node,
                   " is not ready (it is ", info.state == v1::RANK_STATE_LOST ? "LOST" : "STARTING",
                   ")", info.error.empty() ? "" : absl::StrCat("; its last process: ", info.error)),
      detail);
}

}  // namespace

RankTable::RankTable(int ranks) { AddRanks(0, ranks, ""); }

int RankTable::size() const {
  absl::MutexLock lock(&mutex_);
  return static_cast<int>(slots_.size());
}

void RankTable::AddRanks(int first, int count, const std::string& node, v1::RankState state) {
  absl::MutexLock lock(&mutex_);
  for (int rank = first; rank < first + count; ++rank) {
    const auto added = slots_.try_emplace(rank);
    if (!added.second) continue;
    added.first->second.info.rank = rank;
    added.first->second.info.node = node;
    added.first->second.info.state = state;
  }
}

std::string RankTable::NodeOf(int rank) const {
  absl::MutexLock lock(&mutex_);
  const auto slot = slots_.find(rank);
  return slot == slots_.end() ? "" : slot->second.info.node;
}

RankTable::Slot* RankTable::Current(const WorkerRef& ref) {
  const auto slot = slots_.find(ref.rank);
  if (slot == slots_.end() || slot->second.client == nullptr) return nullptr;
  return slot->second.client->ref() == ref ? &slot->second : nullptr;
}

const RankTable::Slot* RankTable::Current(const WorkerRef& ref) const {
  const auto slot = slots_.find(ref.rank);
  if (slot == slots_.end() || slot->second.client == nullptr) return nullptr;
  return slot->second.client->ref() == ref ? &slot->second : nullptr;
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
    slot->info.how = how;
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
  for (const auto& entry : slots_) result.push_back(entry.second.info);
  return result;
}

absl::StatusOr<std::shared_ptr<WorkerClient>> RankTable::Find(const WorkerRef& ref) const {
  absl::MutexLock lock(&mutex_);
  if (!ended_.empty()) return RankLostError(ref.rank, ended_);
  if (const Slot* slot = Current(ref)) return slot->client;
  const auto slot = slots_.find(ref.rank);
  const bool known = slot != slots_.end() && !slot->second.info.how.empty();
  return RankLostError(
      ref.rank, known ? slot->second.info.how : absl::StrCat("rank ", ref.rank, " has no process"));
}

bool RankTable::IsReady(const WorkerRef& ref) const {
  absl::MutexLock lock(&mutex_);
  const Slot* slot = Current(ref);
  return slot != nullptr && slot->info.state == v1::RANK_STATE_READY;
}

bool RankTable::AwaitLost(const WorkerRef& ref, absl::Time deadline) const {
  absl::MutexLock lock(&mutex_);
  const auto lost = [&]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return Current(ref) == nullptr; };
  return mutex_.AwaitWithDeadline(absl::Condition(&lost), deadline);
}

absl::StatusOr<std::vector<WorkerRef>> RankTable::AwaitReady(
    absl::Span<const int> ranks, absl::Time deadline,
    absl::FunctionRef<absl::Status()> stop) const {
  {
    absl::MutexLock lock(&mutex_);
    for (int rank : ranks) {
      if (slots_.count(rank) > 0) continue;
      std::vector<int> known;
      for (const auto& slot : slots_) known.push_back(slot.first);
      return MakeError(
          absl::StatusCode::kNotFound,
          absl::StrCat("--ranks: rank ", rank, " does not exist; ",
                       known.empty() ? "there is none" : "allowed: ", FormatRankList(known)),
          v1::ERROR_REASON_INVALID_FIELD);
    }
  }
  const auto first_unready = [this, &ranks]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
    return std::find_if(ranks.begin(), ranks.end(), [this](int rank) {
      mutex_.AssertReaderHeld();
      return slots_.at(rank).info.state != v1::RANK_STATE_READY;
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
      for (int rank : ranks) result.push_back(slots_.at(rank).client->ref());
      return result;
    }
    if (absl::Now() >= deadline) return NotReadyError(slots_.at(*first_unready()).info);
  }
}

absl::optional<WorkerRef> RankTable::Serving(int rank) const {
  absl::MutexLock lock(&mutex_);
  const auto slot = slots_.find(rank);
  if (slot == slots_.end() || slot->second.client == nullptr) return absl::nullopt;
  return slot->second.client->ref();
}

v1::WorkerState RankTable::StateOf(const WorkerRef& ref) const {
  absl::MutexLock lock(&mutex_);
  const Slot* slot = Current(ref);
  return slot == nullptr ? v1::WorkerState() : slot->state;
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

std::vector<std::shared_ptr<WorkerClient>> RankTable::Clients() const {
  absl::MutexLock lock(&mutex_);
  std::vector<std::shared_ptr<WorkerClient>> clients;
  for (const auto& entry : slots_) {
    if (entry.second.client != nullptr) clients.push_back(entry.second.client);
  }
  return clients;
}

void RankTable::EndCalls(const std::string& why) {
  {
    absl::MutexLock lock(&mutex_);
    if (ended_.empty()) ended_ = why;
  }
  for (const auto& client : Clients()) client->Lost(why);
}

void RankTable::EndUndecided(absl::Time now) {
  for (const auto& client : Clients()) client->EndUndecided(now);
}

}  // namespace regroup
