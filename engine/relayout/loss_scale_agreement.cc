#include "engine/relayout/loss_scale_agreement.h"

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "engine/group/comm_status.h"

namespace regroup {

absl::StatusOr<std::optional<LossScale>> AgreeOnLossScale(Group& group,
                                                          const std::optional<LossScale>& mine) {
  struct Report {
    int64_t holds = 0;
    double value = 0;
    int64_t good_steps = 0;
  };
  Report report;
  if (mine.has_value()) report = {1, mine->value, mine->good_steps};
  const absl::StatusOr<std::vector<std::string>> reports = group.Exchange(
      absl::string_view(reinterpret_cast<const char*>(&report), sizeof(report)), "loss scale");
  if (!reports.ok()) return reports.status();
  std::optional<LossScale> found;
  int finder = 0;
  for (size_t i = 0; i < reports->size(); ++i) {
    if ((*reports)[i].size() != sizeof(report)) {
      return absl::InternalError("a rank sent a loss scale of another size");
    }
    std::memcpy(&report, (*reports)[i].data(), sizeof(report));
    if (report.holds == 0) continue;
    const LossScale held{report.value, report.good_steps};
    const int rank = group.options().ranks[i];
    if (!found.has_value()) {
      found = held;
      finder = rank;
    } else if (!(*found == held)) {
      return WithReason(
          absl::AbortedError(absl::StrCat(
              "engine ", group.options().engine, ": ranks disagree on the loss scale: rank ",
              finder, " has ", found->value, " after ", found->good_steps, " good steps, rank ",
              rank, " has ", held.value, " after ", held.good_steps)),
          "RANKS_DISAGREE");
    }
  }
  return found;
}

}  // namespace regroup
