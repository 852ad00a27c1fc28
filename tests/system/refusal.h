// Tables of commands that must be refused, and change nothing.
#ifndef TESTS_SYSTEM_REFUSAL_H_
#define TESTS_SYSTEM_REFUSAL_H_

#include <string>
#include <vector>

#include "tests/system/cli.h"
#include "tests/system/fixtures.h"

namespace regroup::harness {

// Exit codes of regroupctl.
inline constexpr int kRefused = 1;  // by the server
inline constexpr int kUsage = 2;    // nothing was sent
inline constexpr int kNoAnswer = 3;
inline constexpr int kEither = -1;  // kRefused or kUsage

struct Refusal {
  std::vector<std::string> command;
  int exit = kEither;
  std::vector<std::string> said;  // all of it, in the one line on stderr
};

// A daemon of four ranks with a trainer `actor` on 0-1 that has made a step, an inference engine
// `rollout` on 2 and a trainer `net` of an mlp on 3.
class RefusalTest : public FixtureTest {
 protected:
  static void SetUpTestSuite();
  void TearDown() override {}  // the engines are the suite's

  // Runs each command; checks what it says and that `engine list` is as before.
  static void ExpectRefused(const std::vector<Refusal>& table);
};

}  // namespace regroup::harness

#endif  // TESTS_SYSTEM_REFUSAL_H_
