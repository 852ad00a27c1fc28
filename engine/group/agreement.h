// One primitive for all checks: do the members of a group mean the same?
#ifndef ENGINE_GROUP_AGREEMENT_H_
#define ENGINE_GROUP_AGREEMENT_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "engine/group/group.h"

namespace regroup {

// Collective over `group`. Exchanges a digest of `values`; only on a mismatch the lists themselves,
// and then every member gets the same error: ABORTED with reason RANKS_DISAGREE, naming engine,
// phase, group, the ranks on each side, the first differing position, both values (cut to a
// readable length) and both lengths. A member that cannot take part because it failed passes its
// error as `failure`: then every member gets that error, naming the rank, and nobody waits for the
// deadline.
absl::Status Agree(Group& group, absl::string_view phase, const std::vector<std::string>& values,
                   const absl::Status& failure = absl::OkStatus());

// What this thread has spent in Agree since it started: to be set beside the time of a step, all of
// whose agreements are made by the thread that runs it (on a CPU, autograd too runs there).
absl::Duration TimeInAgreements();

}  // namespace regroup

#endif  // ENGINE_GROUP_AGREEMENT_H_
