// Makes this daemon a part of its primary's cluster, and keeps it so.
#ifndef DAEMON_AGENT_JOINER_H_
#define DAEMON_AGENT_JOINER_H_

#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "regroup/v1/agent.grpc.pb.h"

namespace regroup {

struct JoinerOptions {
  std::string primary;                          // HOST:PORT
  absl::Duration patience = absl::Seconds(30);  // of the first join
  absl::Duration call = absl::Seconds(10);      // the primary may wait for an earlier daemon
  absl::Duration min_backoff = absl::Milliseconds(100);
  absl::Duration max_backoff = absl::Seconds(2);
  absl::Duration unasked = absl::Seconds(2);  // after which the primary has forgotten this node
};

// Whether another try may succeed: the primary is not there (yet). Pure.
bool WorthAnotherTry(const absl::Status& status);

class Joiner {
 public:
  Joiner(const JoinerOptions& options, const v1::JoinRequest& request);
  ~Joiner();  // ends the keeping

  // Blocks until the primary took the node in; asks `stopped` about ten times a second. Errors:
  // UNAVAILABLE after `patience`, naming --join, the address and what the last try said; CANCELLED
  // when stopped; the primary's refusal.
  absl::StatusOr<v1::JoinResponse> JoinFirst(absl::FunctionRef<bool()> stopped);

  // From now on, on a thread of its own: joins again, as what `joined` made of it, whenever
  // `unasked()` says that no primary has asked for that long, for ever.
  void KeepJoined(const v1::JoinResponse& joined, std::function<absl::Duration()> unasked);

 private:
  // One try; CANCELLED when stopped.
  absl::StatusOr<v1::JoinResponse> Try(absl::FunctionRef<bool()> stopped);
  void Loop();

  const JoinerOptions options_;
  const std::unique_ptr<v1::Agent::Stub> stub_;
  v1::JoinRequest request_;
  std::function<absl::Duration()> unasked_;
  absl::Mutex mutex_;
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread keeper_;
};

}  // namespace regroup

#endif  // DAEMON_AGENT_JOINER_H_
