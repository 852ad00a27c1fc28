// The loss scale of an fp16 trainer, which ranks that join learn from those that hold it.
#ifndef ENGINE_RELAYOUT_LOSS_SCALE_AGREEMENT_H_
#define ENGINE_RELAYOUT_LOSS_SCALE_AGREEMENT_H_

#include <optional>

#include "absl/status/statusor.h"
#include "engine/group/group.h"
#include "engine/zero/loss_scale.h"

namespace regroup {

// Collective over `group`. `mine`: what this rank holds, unset if it holds none. Returns what the
// first member that holds one holds, unset if none does. Errors: ABORTED (reason RANKS_DISAGREE,
// the same on every member) if two members hold different ones, and those of the exchange.
absl::StatusOr<std::optional<LossScale>> AgreeOnLossScale(Group& group,
                                                          const std::optional<LossScale>& mine);

}  // namespace regroup

#endif  // ENGINE_RELAYOUT_LOSS_SCALE_AGREEMENT_H_
