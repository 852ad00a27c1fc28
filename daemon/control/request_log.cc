#include "daemon/control/request_log.h"

#include <utility>

#include "absl/hash/hash.h"
#include "absl/strings/str_cat.h"
#include "proto/rpc_status.h"

namespace regroup {
namespace {

uint64_t DigestOf(const google::protobuf::Message& request) {
  return absl::HashOf(request.GetTypeName(), request.SerializeAsString());
}

}  // namespace

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
                     absl::StrCat("request_id '", id, "' was used for another request (",
                                  entry->second.answer.kind(), " ", entry->second.answer.engine(),
                                  "); allowed: a new id for a new request"),
                     v1::ERROR_REASON_INVALID_FIELD);
  }
  return absl::make_optional(entry->second.answer);
}

void RequestLog::Remember(const std::string& id, const google::protobuf::Message& request,
                          const v1::Operation& answer, absl::Time now) {
  entries_[id] = {DigestOf(request), answer};
  ages_.push_back({now, id});
  Forget(now);
}

}  // namespace regroup
