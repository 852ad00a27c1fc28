// Ranks as threads of one process: what is tested is the real group over real sockets.
#ifndef ENGINE_GROUP_THREAD_RANKS_H_
#define ENGINE_GROUP_THREAD_RANKS_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "engine/group/group.h"

namespace regroup {

// Runs `body(rank)` on a thread of its own for each of `ranks` and waits for all.
void RunRanks(const std::vector<int>& ranks, const std::function<void(int)>& body);

// Forms a group over `ranks` on threads, then runs `body(rank, group)` on each. The groups are
// destroyed together at the end. Fails the test if the group does not form.
void RunInGroup(const std::vector<int>& ranks, absl::Duration timeout,
                const std::function<void(int, std::unique_ptr<Group>)>& body);

}  // namespace regroup

#endif  // ENGINE_GROUP_THREAD_RANKS_H_
