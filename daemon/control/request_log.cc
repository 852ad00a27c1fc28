#include "daemon/control/request_log.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/layout/human_text.h"
#include "proto/rpc_status.h"
#include "spdlog/spdlog.h"
#include "xxhash.h"

namespace regroup {
namespace {

// The same in every process.
uint64_t DigestOf(const google::protobuf::Message& request) {
  const std::string bytes = absl::StrCat(request.GetTypeName(), "\n", request.SerializeAsString());
  return XXH3_64bits(bytes.data(), bytes.size());
}

}  // namespace

absl::Status RequestLog::Restore() {
  if (store_ == nullptr) return absl::OkStatus();
  const absl::StatusOr<std::vector<StoredRequest>> stored = store_->Requests();
  if (!stored.ok()) return stored.status();
  for (const StoredRequest& request : *stored) {
    entries_[request.id] = {request.digest, request.answer};
    ages_.push_back({absl::FromUnixMicros(request.accepted_micros), request.id});
  }
  return absl::OkStatus();
}

void RequestLog::Forget(absl::Time now) {
  while (!ages_.empty() && (ages_.size() > kMost || ages_.front().time + kKept < now)) {
    entries_.erase(ages_.front().id);
    ages_.pop_front();
  }
}

absl::StatusOr<absl::optional<v1::Operation>> RequestLog::Find(
    const std::string& id, const google::protobuf::Message& request, absl::Time now) {
  Forget(now);
  const auto entry = entries_.find(id);
  if (entry == entries_.end()) return absl::optional<v1::Operation>();
  if (entry->second.request != DigestOf(request)) {
    return MakeError(absl::StatusCode::kAlreadyExists,
                     absl::StrCat("request_id '", Printable(id), "' was used for another request (",
                                  entry->second.answer.kind(), " ", entry->second.answer.engine(),
                                  "); allowed: a new id for a new request"),
                     v1::ERROR_REASON_INVALID_FIELD);
  }
  return absl::make_optional(entry->second.answer);
}

void RequestLog::Remember(const std::string& id, const google::protobuf::Message& request,
                          const v1::Operation& answer, absl::Time now) {
  entries_[id] = {DigestOf(request), answer};
  if (store_ != nullptr) {
    const absl::Status status = store_->PutRequest(
        {id, absl::ToUnixMicros(now), DigestOf(request), answer}, absl::ToUnixMicros(now - kKept));
    if (!status.ok()) spdlog::error("request {}: {}", Printable(id), std::string(status.message()));
  }
  ages_.push_back({now, id});
  Forget(now);
}

}  // namespace regroup
