// Which mutations were accepted: a request that comes twice is answered, not run, twice.
#ifndef DAEMON_CONTROL_REQUEST_LOG_H_
#define DAEMON_CONTROL_REQUEST_LOG_H_

#include <cstdint>
#include <deque>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/optional.h"
#include "daemon/store/store.h"
#include "google/protobuf/message.h"
#include "regroup/v1/control.pb.h"

namespace regroup {

// Not thread safe: whoever accepts requests does so one at a time.
class RequestLog {
 public:
  static constexpr absl::Duration kKept = absl::Hours(24);
  static constexpr size_t kMost = 100000;  // the oldest are forgotten earlier than that

  // With a store, which outlives this, requests are remembered over a restart.
  explicit RequestLog(Store* store = nullptr) : store_(store) {}

  // Takes over those of an earlier start, before anything else. Errors: the store's.
  absl::Status Restore();

  // The first answer to `request` under `id`; nullopt if the id is new. Errors:
  // ALREADY_EXISTS, the id was used for another request.
  absl::StatusOr<absl::optional<v1::Operation>> Find(const std::string& id,
                                                     const google::protobuf::Message& request,
                                                     absl::Time now);

  // Remembers an accepted request and its first answer.
  void Remember(const std::string& id, const google::protobuf::Message& request,
                const v1::Operation& answer, absl::Time now);

 private:
  struct Entry {
    uint64_t request = 0;  // digest of type and bytes
    v1::Operation answer;
  };
  struct Age {
    absl::Time time;
    std::string id;
  };
  void Forget(absl::Time now);

  Store* const store_;
  absl::flat_hash_map<std::string, Entry> entries_;
  std::deque<Age> ages_;  // oldest first
};

}  // namespace regroup

#endif  // DAEMON_CONTROL_REQUEST_LOG_H_
