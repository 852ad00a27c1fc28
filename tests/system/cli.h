// The commands of a story as functions, each through regroupctl; and a fixture whose tests share
// one daemon.
#ifndef TESTS_SYSTEM_CLI_H_
#define TESTS_SYSTEM_CLI_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "nlohmann/json.hpp"
#include "tests/system/daemon.h"
#include "tests/system/hf_folder.h"

namespace regroup::harness {

using Flags = std::vector<std::string>;

// One line of `train`. Numbers that are not finite are NaN.
struct StepRecord {
  int64_t step = 0;
  double loss = 0;
  double grad_norm = 0;
  int64_t tokens = 0;
  bool skipped = false;
  std::string reason;  // why it was skipped
};

// Exactly, to the last bit.
bool operator==(const StepRecord& a, const StepRecord& b);
void PrintTo(const StepRecord& record, std::ostream* out);

std::vector<StepRecord> ParseSteps(const CtlResult& result);

// One of the outputs of `generate`.
struct Generated {
  std::vector<int64_t> tokens;
  std::vector<double> logprobs;
  int64_t weights_version = 0;
  std::string finish_reason;
};

// What a train command reads and how much of it.
struct TrainArgs {
  std::string data;
  int64_t steps = 1;
  int64_t batch = 1;
  int64_t seq = 0;  // 0: an mlp model
  Flags flags;
};

std::vector<std::string> TrainCommand(const std::string& engine, const TrainArgs& args);

// Each verb fails the test if the command fails. Thread compatible.
class Cli {
 public:
  explicit Cli(const Daemon& daemon) : daemon_(&daemon) {}

  const Ctl& ctl() const { return daemon_->ctl(); }

  nlohmann::json Create(const std::string& engine, const std::string& ranks,
                        const std::string& model, const Flags& flags) const;
  nlohmann::json CreateRollout(const std::string& engine, const std::string& ranks,
                               const std::string& model) const;
  void Delete(const std::string& engine) const;
  std::vector<StepRecord> Train(const std::string& engine, const TrainArgs& args) const;
  nlohmann::json Relayout(const std::string& engine, const std::string& ranks,
                          const Flags& flags = {}) const;
  nlohmann::json Sync(const std::string& source, const std::string& destination) const;
  std::vector<Generated> Generate(const std::string& engine,
                                  const std::vector<std::vector<int64_t>>& prompts,
                                  int64_t max_tokens, const Flags& flags = {}) const;

  // Exports into a new folder under the data root; returns its path.
  std::string ExportFolder(const std::string& engine) const;
  TensorMap Export(const std::string& engine) const;

  // The row of `engine list`; a null json if there is none.
  nlohmann::json Row(const std::string& engine) const;
  std::string State(const std::string& engine) const;  // "" if there is no such engine
  std::vector<int> Ranks(const std::string& engine) const;
  nlohmann::json Describe(const std::string& engine) const;
  std::vector<std::string> EngineNames() const;

  // Waits until what `client` asked for on the engine is in `phase`, or `client` has ended: the
  // phase may pass unseen.
  void AwaitPhase(const std::string& engine, const std::string& phase, Process& client) const;

 private:
  const Daemon* daemon_;
};

// Tests that share a daemon. A suite starts it in SetUpTestSuite; what a test leaves is deleted
// after it.
class SharedDaemonTest : public ::testing::Test {
 protected:
  static void StartDaemon(const DaemonOptions& options);
  // One more node of its cluster, with the same data root.
  static void StartJoined(const std::string& node, int ranks);
  static void TearDownTestSuite();

  void SetUp() override;
  void TearDown() override;

  static Daemon& daemon() { return *daemon_; }
  static Daemon& joined(size_t i) { return *joined_[i]; }
  static const Cli& cli() { return *cli_; }
  static std::string DataPath(const std::string& name) { return daemon_->data_root() + "/" + name; }

 private:
  static std::unique_ptr<Daemon> daemon_;
  static std::vector<std::unique_ptr<Daemon>> joined_;
  static std::unique_ptr<Cli> cli_;
};

// Names the tensors that differ; empty if both hold the same bytes under the same names.
std::vector<std::string> Differences(const TensorMap& a, const TensorMap& b);

}  // namespace regroup::harness

#endif  // TESTS_SYSTEM_CLI_H_
