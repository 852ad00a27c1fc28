// Every fault of the grid. It takes minutes: worker_fault_test has those that each change has to
// pass.
#include "tests/system/fault_grid.h"

#include <gtest/gtest.h>
#include <signal.h>

#include <string>
#include <vector>

#include "tests/system/daemon_kill.h"

namespace regroup::harness {
namespace {

std::vector<FaultCase> WholeGrid() {
  struct Row {
    std::string operation;
    std::vector<std::string> phases;
    std::vector<int> ranks;
  };
  const std::vector<Row> rows = {{"create", {"prepare", "form"}, {0, 2}},
                                 {"train", {"check", "step"}, {0, 2}},
                                 {"relayout", {"prepare", "agree", "move", "commit"}, {0, 1, 2}},
                                 {"sync", {"prepare", "agree", "move", "commit"}, {0, 1, 2}},
                                 {"generate", {"prefill", "decode"}, {0, 2}},
                                 {"trainerGenerate", {"prefill", "decode"}, {0, 2}},
                                 {"delete", {"cancel", "drop"}, {0, 2}}};
  std::vector<FaultCase> cases;
  for (const Row& row : rows) {
    for (const std::string& phase : row.phases) {
      for (const int signal : {SIGKILL, SIGSTOP}) {
        for (const int rank : row.ranks) cases.push_back({row.operation, phase, signal, rank});
      }
    }
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Whole, FaultGridTest, ::testing::ValuesIn(WholeGrid()),
                         [](const auto& info) { return NameOf(info.param); });

INSTANTIATE_TEST_SUITE_P(
    Whole, DaemonKillTest,
    ::testing::Values(DaemonKill{"create", "prepare"}, DaemonKill{"create", "form"},
                      DaemonKill{"train", "check"}, DaemonKill{"train", "step"},
                      DaemonKill{"relayout", "prepare"}, DaemonKill{"relayout", "agree"},
                      DaemonKill{"relayout", "move"}, DaemonKill{"relayout", "commit"},
                      DaemonKill{"sync", "prepare"}, DaemonKill{"sync", "agree"},
                      DaemonKill{"sync", "move"}, DaemonKill{"sync", "commit"},
                      DaemonKill{"generate", "prefill"}, DaemonKill{"generate", "decode"},
                      DaemonKill{"trainerGenerate", "prefill"},
                      DaemonKill{"trainerGenerate", "decode"}, DaemonKill{"delete", "cancel"},
                      DaemonKill{"delete", "drop"}),
    [](const auto& info) { return NameOf(info.param); });

}  // namespace
}  // namespace regroup::harness
