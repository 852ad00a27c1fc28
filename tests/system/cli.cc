#include "tests/system/cli.h"

#include <algorithm>
#include <atomic>
#include <limits>
#include <ostream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace regroup::harness {
namespace {

using nlohmann::json;

// A client of a long test must not be cut off by a busy machine.
constexpr absl::Duration kLong = absl::Seconds(180);

std::string Unique(const std::string& name) {
  static std::atomic<int> counter{0};
  return absl::StrCat(name, "-", counter++);
}

// JSON has no word for a number that is not finite: it is null.
double NumberOrNan(const json& row, const char* field) {
  const auto value = row.find(field);
  return value != row.end() && value->is_number() ? value->get<double>()
                                                  : std::numeric_limits<double>::quiet_NaN();
}

std::vector<std::string> With(std::vector<std::string> arguments, const Flags& flags) {
  arguments.insert(arguments.end(), flags.begin(), flags.end());
  return arguments;
}

}  // namespace

bool operator==(const StepRecord& a, const StepRecord& b) {
  return a.step == b.step && a.loss == b.loss && a.grad_norm == b.grad_norm &&
         a.tokens == b.tokens && a.skipped == b.skipped;
}

void PrintTo(const StepRecord& record, std::ostream* out) {
  *out << absl::StrFormat("step %d loss %.17g norm %.17g tokens %d%s", record.step, record.loss,
                          record.grad_norm, record.tokens, record.skipped ? " skipped" : "");
}

std::vector<StepRecord> ParseSteps(const CtlResult& result) {
  std::vector<StepRecord> records;
  for (const json& row : result.rows()) {
    StepRecord record;
    record.step = row.value("step", int64_t{-1});
    record.loss = NumberOrNan(row, "loss");
    record.grad_norm = NumberOrNan(row, "gradNorm");
    record.tokens = row.value("tokens", int64_t{-1});
    record.skipped = row.value("skipped", true);
    record.reason = row.value("reason", "");
    records.push_back(record);
  }
  return records;
}

std::vector<std::string> TrainCommand(const std::string& engine, const TrainArgs& args) {
  std::vector<std::string> command = {"train", engine, absl::StrCat("--data=", args.data),
                                      absl::StrCat("--steps=", args.steps),
                                      absl::StrCat("--batch=", args.batch)};
  if (args.seq != 0) command.push_back(absl::StrCat("--seq=", args.seq));
  return With(std::move(command), args.flags);
}

json Cli::Create(const std::string& engine, const std::string& ranks, const std::string& model,
                 const Flags& flags) const {
  return ctl()
      .MustRun(With({"engine", "create", engine, "--ranks=" + ranks, "--model=" + model}, flags),
               kLong)
      .json();
}

json Cli::CreateRollout(const std::string& engine, const std::string& ranks,
                        const std::string& model) const {
  return Create(engine, ranks, model, {"--role=infer"});
}

void Cli::Delete(const std::string& engine) const {
  ctl().MustRun({"engine", "delete", engine}, kLong);
}

std::vector<StepRecord> Cli::Train(const std::string& engine, const TrainArgs& args) const {
  const CtlResult result = ctl().MustRun(TrainCommand(engine, args), kLong);
  std::vector<StepRecord> records = ParseSteps(result);
  EXPECT_EQ(static_cast<int64_t>(records.size()), args.steps) << result.output;
  return records;
}

json Cli::Relayout(const std::string& engine, const std::string& ranks, const Flags& flags) const {
  return ctl()
      .MustRun(With({"engine", "relayout", engine, "--ranks=" + ranks}, flags), kLong)
      .json();
}

json Cli::Sync(const std::string& source, const std::string& destination) const {
  return ctl().MustRun({"engine", "sync", source, destination}, kLong).json();
}

std::vector<Generated> Cli::Generate(const std::string& engine,
                                     const std::vector<std::vector<int64_t>>& prompts,
                                     int64_t max_tokens, const Flags& flags) const {
  const std::string file = NewFolder("prompts") + "/prompts.jsonl";
  std::string lines;
  for (const auto& prompt : prompts) absl::StrAppend(&lines, json(prompt).dump(), "\n");
  WriteFile(file, lines);
  const CtlResult result = ctl().MustRun(
      With({"generate", engine, "--tokens-file=" + file, absl::StrCat("--max-tokens=", max_tokens)},
           flags),
      kLong);
  std::vector<Generated> outputs;
  if (!result.ok()) return outputs;
  for (const json& row : result.rows().back().value("outputs", json::array())) {
    Generated output;
    output.tokens = row.value("tokens", std::vector<int64_t>{});
    output.logprobs = row.value("logprobs", std::vector<double>{});
    output.weights_version = row.value("weightsVersion", int64_t{-1});
    output.finish_reason = row.value("finishReason", "");
    EXPECT_EQ(output.tokens.size(), output.logprobs.size());
    outputs.push_back(std::move(output));
  }
  EXPECT_EQ(outputs.size(), prompts.size()) << result.output;
  outputs.resize(prompts.size());
  return outputs;
}

std::string Cli::ExportFolder(const std::string& engine) const {
  std::string folder = Unique(daemon_->data_root() + "/export");
  ctl().MustRun({"export", engine, folder}, kLong);
  return folder;
}

TensorMap Cli::Export(const std::string& engine) const {
  return ReadSafetensors(ExportFolder(engine) + "/model.safetensors");
}

json Cli::Row(const std::string& engine) const {
  const json list = ctl().MustRun({"engine", "list"}).json();
  for (const json& row : list.value("engines", json::array())) {
    if (row.value("name", "") == engine) return row;
  }
  return {};
}

std::string Cli::State(const std::string& engine) const {
  const json row = Row(engine);
  return row.is_object() ? row.value("state", "") : "";
}

std::vector<int> Cli::Ranks(const std::string& engine) const {
  const json row = Row(engine);
  return row.is_object() ? row.value("ranks", std::vector<int>{}) : std::vector<int>{};
}

json Cli::Describe(const std::string& engine) const {
  return ctl().MustRun({"engine", "describe", engine}).json();
}

std::vector<std::string> Cli::EngineNames() const {
  std::vector<std::string> names;
  const json list = ctl().MustRun({"engine", "list"}).json();
  for (const json& row : list.value("engines", json::array()))
    names.push_back(row.value("name", ""));
  return names;
}

std::unique_ptr<Daemon> SharedDaemonTest::daemon_;
std::vector<std::unique_ptr<Daemon>> SharedDaemonTest::joined_;
std::unique_ptr<Cli> SharedDaemonTest::cli_;

void SharedDaemonTest::StartDaemon(const DaemonOptions& options) {
  daemon_ = Daemon::Start(options);
  if (daemon_ != nullptr) cli_ = std::make_unique<Cli>(*daemon_);
}

void SharedDaemonTest::StartJoined(const std::string& node, int ranks) {
  if (daemon_ == nullptr) return;
  DaemonOptions options;
  options.node = node;
  options.join = daemon_->address();
  options.ranks = ranks;
  options.data_root = daemon_->data_root();
  joined_.push_back(Daemon::Start(options));
}

void SharedDaemonTest::TearDownTestSuite() {
  cli_.reset();
  joined_.clear();
  daemon_.reset();
}

void SharedDaemonTest::SetUp() {
  ASSERT_NE(daemon_, nullptr);
  ASSERT_TRUE(daemon_->process().Running()) << daemon_->process().Errors();
  for (const auto& node : joined_) ASSERT_NE(node, nullptr);
}

void SharedDaemonTest::TearDown() {
  if (daemon_ == nullptr || !daemon_->process().Running()) return;
  for (const std::string& name : cli_->EngineNames()) cli_->Delete(name);
}

std::vector<std::string> Differences(const TensorMap& a, const TensorMap& b) {
  std::vector<std::string> names;
  for (const auto& [name, tensor] : a) {
    const auto other = b.find(name);
    if (other == b.end() || other->second != tensor) names.push_back(name);
  }
  for (const auto& [name, tensor] : b) {
    if (a.find(name) == a.end()) names.push_back(name);
  }
  return names;
}

void Cli::AwaitPhase(const std::string& engine, const std::string& phase, Process& client) const {
  EXPECT_TRUE(WaitUntil(
      absl::Seconds(60),
      [&] {
        if (!client.Running()) return true;
        const nlohmann::json operations = ctl().MustRun({"operation", "list"}).json()["operations"];
        return std::any_of(operations.begin(), operations.end(), [&](const nlohmann::json& each) {
          return each["engine"] == engine && each["done"] == false && each["phase"] == phase;
        });
      }))
      << engine << " never was in phase " << phase;
}

}  // namespace regroup::harness
