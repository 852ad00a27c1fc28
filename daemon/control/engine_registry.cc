#include "daemon/control/engine_registry.h"

#include <sys/random.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/control/stored_engine.h"
#include "engine/layout/human_text.h"
#include "proto/rpc_status.h"
#include "spdlog/spdlog.h"

namespace regroup {
namespace {

constexpr size_t kMostNames = 8;  // in a message

// Uids go on from a random one, so that those of this daemon and of its predecessor differ.
uint64_t RandomStart() {
  uint64_t value = 0;
  (void)!getrandom(&value, sizeof(value), 0);
  return (value >> 2) + 1;  // positive as an int64, with room to count
}

// Whether the event's cause can be undone. What has happened already is not refused: if it is not
// on disk, a restart finds it out anew.
bool MayBeRefused(EngineEvent event) {
  return event == EngineEvent::kForm || event == EngineEvent::kFormed ||
         event == EngineEvent::kMove || event == EngineEvent::kMoved;
}

std::string Names(const std::map<uint64_t, EngineRecord>& records) {
  std::string names;
  size_t count = 0;
  for (const auto& entry : records) {
    if (++count > kMostNames) return names + ", ...";
    absl::StrAppend(&names, names.empty() ? "" : ", ", entry.second.spec.name());
  }
  return names.empty() ? "none" : names;
}

}  // namespace

v1::Engine ToProto(const EngineRecord& record) {
  v1::Engine engine;
  engine.set_name(record.spec.name());
  *engine.mutable_ranks() = record.spec.layout().ranks();
  engine.set_role(record.spec.role());
  engine.set_state(record.state);
  engine.set_generation(record.generation);
  engine.set_step(record.step);
  engine.set_data_position(record.data_position);
  engine.set_weights_version(record.weights_version);
  engine.set_error(std::string(record.failure.message()));
  engine.set_uid(absl::StrCat(record.uid));
  *engine.mutable_spec() = record.spec;
  engine.set_parameters(record.parameters);
  engine.set_units(record.units);
  engine.set_activity(record.activity);
  return engine;
}

EngineRegistry::EngineRegistry(Store* store) : store_(store), next_uid_(RandomStart()) {}

absl::Status EngineRegistry::Restore() {
  if (store_ == nullptr) return absl::OkStatus();
  const absl::StatusOr<uint64_t> last = store_->LastUid();
  if (!last.ok()) return last.status();
  const absl::StatusOr<std::vector<v1::StoredEngine>> stored = store_->Engines();
  if (!stored.ok()) return stored.status();
  absl::MutexLock lock(&mutex_);
  if (*last != 0) next_uid_ = *last + 1;
  for (const v1::StoredEngine& row : *stored) {
    EngineRecord record = FromStored(row);
    switch (record.state) {
      case v1::ENGINE_STATE_READY:
      case v1::ENGINE_STATE_MOVING:
        record.was_moving = record.state == v1::ENGINE_STATE_MOVING;
        record.restored = true;
        record.state = v1::ENGINE_STATE_FORMING;
        break;
      case v1::ENGINE_STATE_FAILED:
        break;
      default:  // it never came to be, or was being deleted: its ranks are told when they are found
        if (absl::Status status = store_->RemoveEngine(record.uid); !status.ok()) return status;
        continue;
    }
    records_[record.uid] = std::move(record);
  }
  return absl::OkStatus();
}

absl::Status EngineRegistry::Save(const EngineRecord& record) {
  if (store_ == nullptr) return absl::OkStatus();
  if (record.state == v1::ENGINE_STATE_GONE) return store_->RemoveEngine(record.uid);
  return store_->PutEngine(ToStored(record));
}

absl::StatusOr<uint64_t> EngineRegistry::Add(const v1::EngineSpec& spec) {
  absl::MutexLock lock(&mutex_);
  for (const auto& entry : records_) {
    if (entry.second.spec.name() != spec.name()) continue;
    v1::ErrorDetail detail;
    detail.set_reason(v1::ERROR_REASON_INVALID_FIELD);
    detail.set_engine(spec.name());
    return MakeError(
        absl::StatusCode::kAlreadyExists,
        absl::StrCat("engine ", spec.name(), " exists (it is ", StateName(entry.second.state),
                     "); allowed: a name that is free, or delete it first"),
        detail);
  }
  const uint64_t uid = next_uid_++;
  EngineRecord& record = records_[uid];
  record.uid = uid;
  record.spec = spec;
  return uid;
}

absl::StatusOr<EngineRecord> EngineRegistry::Find(const std::string& name) const {
  absl::MutexLock lock(&mutex_);
  for (const auto& entry : records_) {
    if (entry.second.spec.name() == name) return entry.second;
  }
  v1::ErrorDetail detail;
  detail.set_reason(v1::ERROR_REASON_INVALID_FIELD);
  detail.set_engine(Printable(name));
  return MakeError(
      absl::StatusCode::kNotFound,
      absl::StrCat("engine '", Printable(name), "' does not exist; engines: ", Names(records_)),
      detail);
}

absl::optional<EngineRecord> EngineRegistry::Get(uint64_t uid) const {
  absl::MutexLock lock(&mutex_);
  const auto entry = records_.find(uid);
  if (entry == records_.end()) return absl::nullopt;
  return entry->second;
}

std::vector<EngineRecord> EngineRegistry::List() const {
  absl::MutexLock lock(&mutex_);
  std::vector<EngineRecord> result;
  for (const auto& entry : records_) result.push_back(entry.second);
  return result;
}

absl::Status EngineRegistry::Apply(uint64_t uid, EngineEvent event, Change change) {
  absl::MutexLock change_lock(&change_mutex_);
  absl::optional<EngineRecord> record = Get(uid);
  if (!record.has_value()) return absl::NotFoundError("the engine is gone");
  const v1::EngineState before = record->state;
  const absl::optional<v1::EngineState> next = Next(before, event);
  if (!next.has_value()) {
    return absl::FailedPreconditionError(
        absl::StrCat("engine ", record->spec.name(), " is ", StateName(before)));
  }
  change(*record);
  record->state = *next;
  if (absl::Status saved = Save(*record); !saved.ok()) {
    // A delete frees what a full disk is full of; one that is forgotten at once is none.
    const bool forgotten = event == EngineEvent::kDelete && absl::IsUnavailable(saved);
    if (MayBeRefused(event) || forgotten) return saved;
    spdlog::error("engine {}: {}", record->spec.name(), std::string(saved.message()));
  }
  const std::string name = record->spec.name();
  const absl::Status failure = record->failure;
  {
    absl::MutexLock lock(&mutex_);
    if (*next == v1::ENGINE_STATE_GONE) {
      records_.erase(uid);
    } else {
      records_[uid] = *std::move(record);
    }
  }
  spdlog::info("engine {}: {} -> {}{}{}", name, StateName(before), StateName(*next),
               failure.ok() ? "" : ": ", std::string(failure.message()));
  return absl::OkStatus();
}

absl::Status EngineRegistry::Decide(uint64_t uid, Change change) {
  absl::MutexLock change_lock(&change_mutex_);
  absl::optional<EngineRecord> record = Get(uid);
  if (!record.has_value()) return absl::NotFoundError("the engine is gone");
  const v1::EngineState state = record->state;
  if (state != v1::ENGINE_STATE_READY) {
    return record->failure.ok() ? absl::FailedPreconditionError("the engine is not READY any more")
                                : record->failure;
  }
  change(*record);
  record->state = state;
  if (absl::Status saved = Save(*record); !saved.ok()) return saved;
  absl::MutexLock lock(&mutex_);
  records_[uid] = *std::move(record);
  return absl::OkStatus();
}

void EngineRegistry::Update(uint64_t uid, Change change) {
  absl::MutexLock change_lock(&change_mutex_);
  absl::MutexLock lock(&mutex_);
  const auto entry = records_.find(uid);
  if (entry == records_.end()) return;
  const v1::EngineState state = entry->second.state;
  change(entry->second);
  entry->second.state = state;  // Apply is the one setter
}

}  // namespace regroup
