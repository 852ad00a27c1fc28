// prepare -> agree -> move -> commit or roll back, over the union of two rank sets: what relayout
// and sync have in common.
#ifndef DAEMON_CONTROL_MOVE_PHASES_H_
#define DAEMON_CONTROL_MOVE_PHASES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/control/operation_context.h"
#include "regroup/v1/worker.pb.h"

namespace regroup {

struct MoveTotals {
  int64_t bytes_moved = 0;  // between ranks
  int64_t peak_bytes = 0;   // the most on one rank
};

// The source's members, then those of the destination that are not among them: the order in which
// workers form the move's group. The first is its lead.
std::vector<WorkerRef> UnionOfMembers(const std::vector<WorkerRef>& source,
                                      const std::vector<WorkerRef>& destination);

// Runs the phases before the commit on `members` (a union, as above), for the engine `source`.
// Asked to end, it does so between two phases. After an error it has rolled back: nothing has
// changed on any rank that lives.
absl::StatusOr<MoveTotals> MoveUpToCommit(OperationRun& run, const EngineRecord& source,
                                          const std::vector<WorkerRef>& members,
                                          const v1::PrepareMove& prepare);

// Tell every member that lives. One that cannot do it is killed, so that its engines fail as those
// of any lost rank do. Afterwards only `holders` (of a roll-back: the source's members) hold
// anything of the source.
void CommitMove(OperationRun& run, const EngineRecord& source,
                const std::vector<WorkerRef>& members, const std::vector<WorkerRef>& holders);
void RollBackMove(OperationRun& run, const EngineRecord& source,
                  const std::vector<WorkerRef>& members);

}  // namespace regroup

#endif  // DAEMON_CONTROL_MOVE_PHASES_H_
