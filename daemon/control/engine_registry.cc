#include "daemon/control/engine_registry.h"

#include <sys/random.h>

#include <utility>

#include "absl/strings/str_cat.h"
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

EngineRegistry::EngineRegistry() : next_uid_(RandomStart()) {}

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
  detail.set_engine(name);
  return MakeError(absl::StatusCode::kNotFound,
                   absl::StrCat("engine '", name, "' does not exist; engines: ", Names(records_)),
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
  std::string name;
  absl::Status failure;
  v1::EngineState before;
  absl::optional<v1::EngineState> next;
  {
    absl::MutexLock lock(&mutex_);
    const auto entry = records_.find(uid);
    if (entry == records_.end()) return absl::NotFoundError("the engine is gone");
    EngineRecord& record = entry->second;
    next = Next(record.state, event);
    if (!next.has_value()) {
      return absl::FailedPreconditionError(
          absl::StrCat("engine ", record.spec.name(), " is ", StateName(record.state)));
    }
    before = std::exchange(record.state, *next);
    change(record);
    name = record.spec.name();
    failure = record.failure;
    if (record.state == v1::ENGINE_STATE_GONE) records_.erase(entry);
  }
  spdlog::info("engine {}: {} -> {}{}{}", name, StateName(before), StateName(*next),
               failure.ok() ? "" : ": ", std::string(failure.message()));
  return absl::OkStatus();
}

void EngineRegistry::Update(uint64_t uid, Change change) {
  absl::MutexLock lock(&mutex_);
  const auto entry = records_.find(uid);
  if (entry == records_.end()) return;
  const v1::EngineState state = entry->second.state;
  change(entry->second);
  entry->second.state = state;  // Apply is the one setter
}

}  // namespace regroup
