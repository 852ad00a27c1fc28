// One fault in one phase of one operation, on real processes: a worker that dies or stands still.
// A test binary picks its cases by INSTANTIATE_TEST_SUITE_P(..., FaultGridTest, ...).
#ifndef TESTS_SYSTEM_FAULT_GRID_H_
#define TESTS_SYSTEM_FAULT_GRID_H_

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "client/client.h"
#include "tests/system/cli.h"
#include "tests/system/fixtures.h"

namespace regroup::harness {

// Of the ranks 0-4, 3 and 4 hold an engine that no fault may touch. A relayout goes from ranks 0-1
// to 1-2, a sync from a trainer on 0-1 into an inference engine on 1-2, so that rank 0 is the
// source alone, 1 is both, 2 the destination alone. Everything else lies on ranks 0-2, whose lead
// is rank 0. "generate" is asked of an inference engine, "trainerGenerate" of a trainer.
struct FaultCase {
  std::string operation;
  std::string phase;
  int signal = 0;  // SIGKILL or SIGSTOP
  int rank = 0;
};

std::string NameOf(const FaultCase& fault);
void PrintTo(const FaultCase& fault, std::ostream* out);

// Whether the phase is over so soon that a rank has to stand still before it, to be hit in it.
bool IsShort(const std::string& phase);

// Waits until an operation of `kind` on the daemon of `client` is in `phase`. False if `process`,
// who asked for it, ended without its having been seen.
bool SeePhase(Client& client, const std::string& kind, const std::string& phase, Process& process);

// A model whose moves and loads take long enough to be hit; 5 million parameters.
const LlamaFixture& SizableLlama();

// The command that `operation` is, on the engines that PrepareFor has made; their time limits allow
// for what `signal` does to a rank.
std::vector<std::string> CommandOf(const std::string& operation, int signal);
void PrepareFor(const std::string& operation, int signal, const Cli& cli);

class FaultGridTest : public FixtureTest, public ::testing::WithParamInterface<FaultCase> {
 protected:
  static void SetUpTestSuite();

  void SetUp() override;
  void TearDown() override;

  // Tries once; false if the operation was over before the fault.
  bool TryToHit(const FaultCase& fault);

 private:
  // What was computed on this daemon before any fault.
  struct Undisturbed {
    std::vector<StepRecord> on_two;      // of a trainer on two ranks
    std::vector<StepRecord> on_three;    // of a trainer on three
    std::vector<Generated> versions[3];  // of an inference engine, by the version of its weights
    std::vector<StepRecord> other;
  };

  void ExpectOutcome(const FaultCase& fault, const CtlResult& result);
  void ExpectAfterRelayout(const FaultCase& fault, const CtlResult& result);
  void ExpectAfterSync(const FaultCase& fault, const CtlResult& result);
  void ExpectFailed(const std::string& engine, int rank);
  void ExpectGeneratesWhole(int64_t version);
  void ExpectRanksServe(const FaultCase& fault, pid_t old_pid);
  void StepOther();

  static Undisturbed* undisturbed_;
  static int faults_;  // of this daemon
  std::unique_ptr<Client> client_;
  size_t other_steps_ = 0;
};

}  // namespace regroup::harness

#endif  // TESTS_SYSTEM_FAULT_GRID_H_
