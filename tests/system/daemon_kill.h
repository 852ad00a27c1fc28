// A daemon that is killed in one phase of one operation, and started again on its state folder. A
// test binary picks its cases by INSTANTIATE_TEST_SUITE_P(..., DaemonKillTest, ...).
#ifndef TESTS_SYSTEM_DAEMON_KILL_H_
#define TESTS_SYSTEM_DAEMON_KILL_H_

#include <gtest/gtest.h>

#include <ostream>
#include <string>

namespace regroup::harness {

// Of the operations of fault_grid.h.
struct DaemonKill {
  std::string operation;
  std::string phase;
};

std::string NameOf(const DaemonKill& kill);
void PrintTo(const DaemonKill& kill, std::ostream* out);

class DaemonKillTest : public ::testing::TestWithParam<DaemonKill> {
 protected:
  // Tries once; false if the operation was over before the daemon.
  bool TryToHit(const DaemonKill& kill);
};

}  // namespace regroup::harness

#endif  // TESTS_SYSTEM_DAEMON_KILL_H_
