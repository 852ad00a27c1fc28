#include "daemon/control/operation_table.h"

#include <algorithm>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "engine/layout/human_text.h"
#include "proto/rpc_status.h"
#include "spdlog/spdlog.h"

namespace regroup {
namespace {

constexpr char kIdPrefix[] = "op-";

std::string IdOf(int64_t number) { return absl::StrCat(kIdPrefix, number); }

// 0 if it is not an id.
int64_t NumberOf(const std::string& id) {
  int64_t number = 0;
  absl::string_view digits = id;
  return absl::ConsumePrefix(&digits, kIdPrefix) && absl::SimpleAtoi(digits, &number) &&
                 IdOf(number) == id
             ? number
             : 0;
}

}  // namespace

v1::Operation OperationTable::Snapshot(const Entry& entry) {
  v1::Operation operation = entry.operation;
  if (!operation.done()) operation.set_seconds(absl::ToDoubleSeconds(absl::Now() - entry.started));
  return operation;
}

absl::Status OperationTable::NotFound(const std::string& id) const {
  return MakeError(absl::StatusCode::kNotFound,
                   absl::StrCat("operation '", Printable(id), "' does not exist (the last ", kKept,
                                " finished ones are kept)"),
                   v1::ERROR_REASON_INVALID_FIELD);
}

std::map<int64_t, OperationTable::Watcher> OperationTable::Changed(Entry& entry) {
  entry.operation.set_version(entry.operation.version() + 1);
  return std::exchange(entry.watchers, {});
}

absl::Status OperationTable::Restore() {
  if (store_ == nullptr) return absl::OkStatus();
  absl::StatusOr<std::vector<v1::Operation>> stored = store_->Operations();
  if (!stored.ok()) return stored.status();
  for (v1::Operation& operation : *stored) {
    const int64_t number = NumberOf(operation.id());
    if (number == 0) continue;
    if (!operation.done()) {
      operation.set_done(true);
      operation.set_error("the primary restarted");
      operation.set_error_code(static_cast<int>(absl::StatusCode::kUnavailable));
      if (!operation.has_error_detail()) {
        operation.mutable_error_detail()->set_reason(v1::ERROR_REASON_CANCELLED);
        operation.mutable_error_detail()->set_engine(operation.engine());
      }
      operation.set_version(operation.version() + 1);
      if (absl::Status status = store_->PutOperation(number, operation, 0); !status.ok()) {
        return status;
      }
    }
    absl::MutexLock lock(&mutex_);
    last_number_ = std::max(last_number_, number);
    entries_[number].operation = std::move(operation);
    finished_.push_back(number);
  }
  return absl::OkStatus();
}

void OperationTable::Save(int64_t number, const v1::Operation& operation, int64_t forget) const {
  if (store_ == nullptr) return;
  const absl::Status status = store_->PutOperation(number, operation, forget);
  if (!status.ok()) spdlog::error("{}: {}", operation.id(), std::string(status.message()));
}

std::string OperationTable::Start(Plan plan) {
  const std::shared_ptr<Cancellation> cancellation = plan.cancellation;
  std::string id;
  absl::Status closing;
  v1::Operation started;
  int64_t number = 0;
  {
    absl::MutexLock lock(&mutex_);
    number = ++last_number_;
    id = IdOf(number);
    Entry& entry = entries_[number];
    entry.operation.set_id(id);
    entry.operation.set_kind(plan.kind);
    entry.operation.set_engine(plan.engine);
    entry.operation.set_phase("queued");
    entry.operation.set_version(1);
    entry.plan = std::move(plan);
    entry.started = absl::Now();
    closing = closing_;
    started = entry.operation;
  }
  Save(number, started, 0);
  if (start_hook_) start_hook_(started);
  if (!closing.ok() && cancellation != nullptr) cancellation->Cancel(closing);
  return id;
}

void OperationTable::Update(const std::string& id, absl::FunctionRef<void(v1::Operation&)> change) {
  std::map<int64_t, Watcher> watchers;
  v1::Operation now;
  {
    absl::MutexLock lock(&mutex_);
    const auto entry = entries_.find(NumberOf(id));
    if (entry == entries_.end() || entry->second.operation.done()) return;
    change(entry->second.operation);
    watchers = Changed(entry->second);
    now = Snapshot(entry->second);
  }
  for (const auto& watcher : watchers) watcher.second(now);
}

void OperationTable::Finish(const std::string& id, const absl::Status& outcome) {
  std::map<int64_t, Watcher> watchers;
  v1::Operation now;
  int64_t forgotten = 0;
  {
    absl::MutexLock lock(&mutex_);
    const auto entry = entries_.find(NumberOf(id));
    if (entry == entries_.end() || entry->second.operation.done()) return;
    v1::Operation& operation = entry->second.operation;
    operation.set_seconds(absl::ToDoubleSeconds(absl::Now() - entry->second.started));
    operation.set_done(true);
    if (outcome.ok()) {
      operation.set_phase("done");
    } else {
      operation.set_error(std::string(outcome.message()));
      operation.set_error_code(static_cast<int>(outcome.code()));
      if (const auto detail = DetailOf(outcome)) *operation.mutable_error_detail() = *detail;
    }
    entry->second.plan.cancellation = nullptr;
    watchers = Changed(entry->second);
    now = operation;
    finished_.push_back(entry->first);
    if (finished_.size() > kKept) {
      entries_.erase(finished_.front());
      if (entries_.empty() || finished_.front() < entries_.begin()->first) {
        forgotten = finished_.front();
      }
      finished_.pop_front();
    }
  }
  Save(NumberOf(id), now, forgotten);
  spdlog::info("{} {} {}: {} after {:.3f} s{}{}", now.id(), now.kind(), now.engine(), now.phase(),
               now.seconds(), now.error().empty() ? "" : ": ", now.error());
  for (const auto& watcher : watchers) watcher.second(now);
}

absl::StatusOr<v1::Operation> OperationTable::Get(const std::string& id) const {
  absl::MutexLock lock(&mutex_);
  const auto entry = entries_.find(NumberOf(id));
  if (entry == entries_.end()) return NotFound(id);
  return Snapshot(entry->second);
}

std::vector<v1::Operation> OperationTable::List() const {
  absl::MutexLock lock(&mutex_);
  std::vector<v1::Operation> result;
  result.reserve(entries_.size());
  for (const auto& entry : entries_) result.push_back(Snapshot(entry.second));
  return result;
}

std::vector<v1::Operation> OperationTable::Running() const {
  absl::MutexLock lock(&mutex_);
  std::vector<v1::Operation> result;
  for (const auto& entry : entries_) {
    if (!entry.second.operation.done()) result.push_back(Snapshot(entry.second));
  }
  return result;
}

absl::StatusOr<v1::Operation> OperationTable::Cancel(const std::string& id,
                                                     const absl::Status& why) {
  std::shared_ptr<Cancellation> cancellation;
  v1::Operation operation;
  {
    absl::MutexLock lock(&mutex_);
    const auto entry = entries_.find(NumberOf(id));
    if (entry == entries_.end()) return NotFound(id);
    operation = Snapshot(entry->second);
    cancellation = entry->second.plan.cancellation;
  }
  if (cancellation == nullptr) {
    return MakeError(absl::StatusCode::kFailedPrecondition,
                     absl::StrCat("operation ", id, " (", operation.kind(), ") ",
                                  operation.done() ? "is done" : "cannot be cancelled"),
                     v1::ERROR_REASON_INVALID_FIELD);
  }
  cancellation->Cancel(why, CancelledBy::kRequest);
  return operation;
}

void OperationTable::CancelOn(uint64_t engine_uid, const absl::Status& why) {
  std::vector<std::shared_ptr<Cancellation>> cancellations;
  {
    absl::MutexLock lock(&mutex_);
    for (const auto& entry : entries_) {
      for (uint64_t uid : entry.second.plan.engine_uids) {
        if (uid == engine_uid && entry.second.plan.cancellation != nullptr) {
          cancellations.push_back(entry.second.plan.cancellation);
        }
      }
    }
  }
  for (const auto& cancellation : cancellations) cancellation->Cancel(why);
}

void OperationTable::CancelAll(const absl::Status& why) {
  std::vector<std::shared_ptr<Cancellation>> cancellations;
  {
    absl::MutexLock lock(&mutex_);
    closing_ = why;
    for (const auto& entry : entries_) {
      if (entry.second.plan.cancellation != nullptr) {
        cancellations.push_back(entry.second.plan.cancellation);
      }
    }
  }
  for (const auto& cancellation : cancellations) cancellation->Cancel(why);
}

absl::StatusOr<absl::optional<v1::Operation>> OperationTable::Watch(const std::string& id,
                                                                    int64_t after, Watcher changed,
                                                                    int64_t* watch) {
  absl::MutexLock lock(&mutex_);
  const auto entry = entries_.find(NumberOf(id));
  if (entry == entries_.end()) return NotFound(id);
  if (entry->second.operation.version() > after || entry->second.operation.done()) {
    return absl::make_optional(Snapshot(entry->second));
  }
  *watch = ++last_watch_;
  entry->second.watchers.emplace(*watch, std::move(changed));
  return absl::optional<v1::Operation>();
}

bool OperationTable::StopWatch(const std::string& id, int64_t watch) {
  absl::MutexLock lock(&mutex_);
  const auto entry = entries_.find(NumberOf(id));
  return entry != entries_.end() && entry->second.watchers.erase(watch) > 0;
}

}  // namespace regroup
