#include "tests/system/fault_grid.h"

#include <signal.h>

#include <algorithm>
#include <iostream>
#include <ostream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

namespace regroup::harness {
namespace {

using Steps = std::vector<StepRecord>;
using Prompts = std::vector<std::vector<int64_t>>;

constexpr int64_t kForever = 1000000;
// Of engines that nothing happens to, and of those whose rank is killed: a death is known at once,
// so what ends within kBound has not waited for this.
constexpr char kLong[] = "--timeout=180s";
// Of those whose rank is stopped; where nobody waits for it but the daemon, it is killed after 10 s
// without an answer.
constexpr char kShort[] = "--timeout=5s";
constexpr absl::Duration kBound = absl::Seconds(60);  // leaves room for a busy machine
constexpr int kTries = 20;
constexpr size_t kOtherSteps = 40;

TrainArgs Text(int64_t steps) { return {Data().text.path, steps, 4, kSeq, {}}; }

const char* TimeoutFor(int signal) { return signal == SIGSTOP ? kShort : kLong; }

void CreateTrainer(const Cli& cli, const std::string& name, const std::string& ranks,
                   const char* timeout = kLong) {
  Flags flags = OptimizerFlags(AdamW());
  flags.emplace_back(timeout);
  cli.Create(name, ranks, SizableLlama().folder, flags);
}

void CreateRollout(const Cli& cli, const std::string& ranks, const char* timeout = kLong) {
  cli.Create("rollout", ranks, SizableLlama().folder, {"--role=infer", timeout});
}

// So many that every rank answers some.
std::vector<Generated> Answers(const Cli& cli) {
  const Prompts prompts = {{5}, {17, 200, 3}, {9, 9, 9}, {44, 43, 42, 41}};
  return cli.Generate("rollout", prompts, 4);
}

std::string RankWord(int rank) { return absl::StrCat("rank ", rank); }

void ExpectMentions(const std::string& text, const std::string& word) {
  EXPECT_TRUE(absl::StrContains(text, word)) << "\"" << word << "\" is not in: " << text;
}

bool Moves(const FaultCase& fault) {
  return fault.operation == "relayout" || fault.operation == "sync";
}

}  // namespace

std::string NameOf(const FaultCase& fault) {
  static const char* const kSides[] = {"Source", "Both", "Destination"};
  const std::string who = Moves(fault) ? kSides[fault.rank] : fault.rank == 0 ? "Lead" : "Member";
  return absl::StrCat(fault.signal == SIGKILL ? "Kill" : "Stop", "_", fault.operation, "_",
                      fault.phase, "_", who);
}

bool IsShort(const std::string& phase) {
  return phase == "check" || phase == "prefill" || phase == "drop";
}

void PrintTo(const FaultCase& fault, std::ostream* out) { *out << NameOf(fault); }

bool SeePhase(Client& client, const std::string& kind, const std::string& phase, Process& process) {
  const absl::Time deadline = absl::Now() + absl::Seconds(60);
  while (absl::Now() < deadline && process.Running()) {
    const auto list = client.ListOperations();
    EXPECT_TRUE(list.ok()) << list.status();
    if (!list.ok()) return false;
    for (const v1::Operation& operation : list->operations()) {
      if (operation.kind() == kind && !operation.done() && operation.phase() == phase) return true;
    }
    absl::SleepFor(absl::Milliseconds(1));
  }
  EXPECT_FALSE(process.Running()) << kind << " never was in phase " << phase;
  return false;
}

const LlamaFixture& SizableLlama() {
  static const LlamaFixture* const model = [] {
    auto* fixture = new LlamaFixture;
    fixture->folder = Data().root + "/sizable";
    SmallLlama& shape = fixture->shape;
    shape.vocab = 2048;
    shape.hidden = 256;
    shape.layers = 6;
    shape.head_dim = 64;
    shape.intermediate = 640;
    shape.max_positions = 4096;
    fixture->weights = WriteSmallLlama(fixture->folder, shape, 31);
    return fixture;
  }();
  return *model;
}

std::vector<std::string> CommandOf(const std::string& operation, int signal) {
  if (operation == "create") {
    std::vector<std::string> command = {
        "engine",          "create", "hit", "--ranks=0-2", "--model=" + SizableLlama().folder,
        TimeoutFor(signal)};
    for (const std::string& flag : OptimizerFlags(AdamW())) command.push_back(flag);
    return command;
  }
  if (operation == "train") return TrainCommand("hit", Text(kForever));
  if (operation == "relayout") return {"engine", "relayout", "hit", "--ranks=1-2"};
  if (operation == "sync") return {"engine", "sync", "hit", "rollout"};
  if (operation == "delete") return {"engine", "delete", "hit"};
  // Of an inference engine, so many prompts that every rank answers some.
  std::vector<std::string> command = {"generate", "hit", "--tokens=1,2,3", "--max-tokens=4000"};
  if (operation == "generate") {
    const std::string file = Data().root + "/prompts.jsonl";
    WriteFile(file, "[5]\n[17,200,3]\n[9,9,9]\n[44,43,42,41]\n");
    command[1] = "rollout";
    command[2] = "--tokens-file=" + file;
  }
  return command;
}

void PrepareFor(const std::string& operation, int signal, const Cli& cli) {
  if (operation == "create") return;
  const char* timeout = TimeoutFor(signal);
  if (operation == "generate") return CreateRollout(cli, "0-2", timeout);
  const bool moves = operation == "relayout" || operation == "sync";
  CreateTrainer(cli, "hit", moves ? "0-1" : "0-2", timeout);
  if (operation == "sync") CreateRollout(cli, "1-2", timeout);
  if (moves) cli.Train("hit", Text(1));
}

FaultGridTest::Undisturbed* FaultGridTest::undisturbed_ = nullptr;
int FaultGridTest::faults_ = 0;

void FaultGridTest::SetUpTestSuite() {
  StartDaemonOnFixtures(5);
  auto* undisturbed = new Undisturbed;
  undisturbed_ = undisturbed;
  ReferenceRun reference(SizableLlama(), Data().text, AdamW());
  const std::vector<reference::Step> expected = reference.Train(3, 4);
  CreateTrainer(cli(), "hit", "0-2");
  undisturbed->on_three = cli().Train("hit", Text(3));
  cli().Delete("hit");
  CreateTrainer(cli(), "hit", "0-1");
  CreateRollout(cli(), "1-2");
  undisturbed->versions[1] = Answers(cli());
  undisturbed->on_two = cli().Train("hit", Text(1));
  cli().Sync("hit", "rollout");
  undisturbed->versions[2] = Answers(cli());
  for (const StepRecord& step : cli().Train("hit", Text(2))) undisturbed->on_two.push_back(step);
  ExpectSteps(undisturbed->on_three, expected);
  ExpectSteps(undisturbed->on_two, expected);
  for (int version : {1, 2}) {
    for (const Generated& output : undisturbed->versions[version]) {
      EXPECT_EQ(output.weights_version, version);
    }
  }
  EXPECT_NE(undisturbed->versions[1][0].logprobs, undisturbed->versions[2][0].logprobs);
  cli().Delete("hit");
  cli().Delete("rollout");

  cli().Create("other", "3-4", Data().untied.folder, OptimizerFlags(AdamW()));
  undisturbed->other = cli().Train("other", Text(kOtherSteps));
  cli().Delete("other");
  ReferenceRun other(Data().untied, Data().text, AdamW());
  ExpectSteps({undisturbed->other.begin(), undisturbed->other.begin() + 5}, other.Train(5, 4));
}

void FaultGridTest::SetUp() {
  // A rank that dies soon after its start, again and again, is started later each time.
  if (faults_ >= 5) {
    TearDownTestSuite();
    StartDaemonOnFixtures(5);
    faults_ = 0;
  }
  ++faults_;
  FixtureTest::SetUp();
  client_ = *Client::Connect(daemon().address());
  cli().Create("other", "3-4", Data().untied.folder, OptimizerFlags(AdamW()));
}

void FaultGridTest::TearDown() {
  FixtureTest::TearDown();
  for (int rank = 0; rank < 5; ++rank) EXPECT_TRUE(daemon().WaitForRestart(rank, -1)) << rank;
}

void FaultGridTest::StepOther() {
  if (other_steps_ == kOtherSteps || HasFailure()) return;
  const absl::Time start = absl::Now();
  const Steps steps = cli().Train("other", Text(1));
  ASSERT_EQ(steps.size(), 1u);
  EXPECT_EQ(steps[0], undisturbed_->other[other_steps_++]);
  EXPECT_LT(absl::Now() - start, kBound) << "it waited for ranks that are not its own";
}

void FaultGridTest::ExpectFailed(const std::string& engine, int rank) {
  EXPECT_TRUE(WaitUntil(kBound, [&] { return cli().State(engine) == "FAILED"; }))
      << cli().Row(engine);
  ExpectMentions(cli().Describe(engine).value("error", ""), RankWord(rank));
}

void FaultGridTest::ExpectGeneratesWhole(int64_t version) {
  EXPECT_EQ(cli().State("rollout"), "READY");
  EXPECT_EQ(cli().Row("rollout")["weightsVersion"], version);
  const std::vector<Generated> answers = Answers(cli());
  const std::vector<Generated>& expected = undisturbed_->versions[version];
  ASSERT_EQ(answers.size(), expected.size());
  for (size_t i = 0; i < answers.size(); ++i) {
    EXPECT_EQ(answers[i].weights_version, version);
    EXPECT_EQ(answers[i].tokens, expected[i].tokens);
    EXPECT_EQ(answers[i].logprobs, expected[i].logprobs);
  }
}

// Up to the commit the old layout is the engine's, from there on the new one; it lives on in it
// unless the rank held a part of it.
void FaultGridTest::ExpectAfterRelayout(const FaultCase& fault, const CtlResult& result) {
  const bool decided = fault.phase == "commit";
  const bool holder = fault.rank == 1 || fault.rank == (decided ? 2 : 0);
  if (!decided || holder) {
    EXPECT_EQ(result.exit, 1) << result.output;
    ExpectMentions(result.errors, RankWord(fault.rank));
  }
  if (holder) return ExpectFailed("hit", fault.rank);
  EXPECT_EQ(cli().State("hit"), "READY");
  EXPECT_EQ(cli().Ranks("hit"), decided ? (std::vector<int>{1, 2}) : (std::vector<int>{0, 1}));
  EXPECT_EQ(cli().Row("hit")["generation"], decided ? 2 : 1);
  const Steps& all = undisturbed_->on_two;
  EXPECT_EQ(cli().Train("hit", Text(2)), Steps(all.begin() + 1, all.end()));
}

void FaultGridTest::ExpectAfterSync(const FaultCase& fault, const CtlResult& result) {
  const bool decided = fault.phase == "commit";
  const bool in_source = fault.rank <= 1;
  const bool in_destination = fault.rank >= 1;
  if (!decided || in_destination) {
    EXPECT_EQ(result.exit, 1) << result.output;
    ExpectMentions(result.errors, RankWord(fault.rank));
  }
  if (in_destination) {
    ExpectFailed("rollout", fault.rank);
    EXPECT_EQ(cli().ctl().Run({"generate", "rollout", "--tokens=1", "--max-tokens=1"}).exit, 1);
  } else {
    ExpectGeneratesWhole(decided ? 2 : 1);
  }
  if (in_source) return ExpectFailed("hit", fault.rank);
  EXPECT_EQ(cli().State("hit"), "READY");
  const Steps& all = undisturbed_->on_two;
  EXPECT_EQ(cli().Train("hit", Text(2)), Steps(all.begin() + 1, all.end()));
}

void FaultGridTest::ExpectOutcome(const FaultCase& fault, const CtlResult& result) {
  if (fault.operation == "relayout") return ExpectAfterRelayout(fault, result);
  if (fault.operation == "sync") return ExpectAfterSync(fault, result);
  if (fault.operation == "delete") {
    EXPECT_EQ(result.exit, 0) << result.errors;
    EXPECT_EQ(cli().State("hit"), "");
    return;
  }
  EXPECT_EQ(result.exit, 1) << result.output;
  ExpectMentions(result.errors, RankWord(fault.rank));
  if (fault.operation == "create") {
    EXPECT_EQ(cli().State("hit"), "") << "nobody has it, so the name is free";
    return;
  }
  if (fault.operation == "train") {
    Steps seen = ParseSteps(result);
    seen.resize(std::min(seen.size(), undisturbed_->on_three.size()));
    EXPECT_EQ(seen, Steps(undisturbed_->on_three.begin(),
                          undisturbed_->on_three.begin() + static_cast<int64_t>(seen.size())));
  }
  ExpectFailed(fault.operation == "generate" ? "rollout" : "hit", fault.rank);
}

// The ranks that were not hit serve at once, and the one that was as soon as it is back.
void FaultGridTest::ExpectRanksServe(const FaultCase& fault, pid_t old_pid) {
  for (const std::string& name : cli().EngineNames()) {
    if (name != "other") cli().Delete(name);
  }
  if (fault.signal == SIGSTOP) {
    const std::string living = fault.rank == 0 ? "1-2" : fault.rank == 1 ? "0,2" : "0-1";
    CreateTrainer(cli(), "next", living);
    EXPECT_EQ(cli().Train("next", Text(1))[0], undisturbed_->on_two[0]);
    cli().Delete("next");
    EXPECT_TRUE(daemon().WaitForRestart(fault.rank, old_pid)) << "a rank that hangs is replaced";
  }
  CreateTrainer(cli(), "next", "0-2");
  EXPECT_EQ(cli().Train("next", Text(2)),
            Steps(undisturbed_->on_three.begin(), undisturbed_->on_three.begin() + 2));
  EXPECT_NE(daemon().WorkerPid(fault.rank), old_pid);
  cli().Delete("next");
  for (int rank = 0; rank < 3; ++rank) EXPECT_EQ(daemon().RankRow(rank)["engines"].size(), 0u);
}

bool FaultGridTest::TryToHit(const FaultCase& fault) {
  PrepareFor(fault.operation, fault.signal, cli());
  const pid_t pid = daemon().WorkerPid(fault.rank);
  EXPECT_GT(pid, 0);
  if (IsShort(fault.phase)) {
    EXPECT_EQ(kill(pid, SIGSTOP), 0);
  }
  std::unique_ptr<Process> train;
  if (fault.phase == "cancel") {
    train = cli().ctl().Start(CommandOf("train", fault.signal));
    EXPECT_TRUE(WaitUntil(absl::Seconds(60), [&] { return !train->OutputLines().empty(); }));
  }
  const auto process = cli().ctl().Start(CommandOf(fault.operation, fault.signal));
  if (fault.phase == "step") {
    EXPECT_TRUE(WaitUntil(absl::Seconds(60), [&] { return !process->OutputLines().empty(); }));
  }
  const std::string kind = fault.operation == "trainerGenerate" ? "generate" : fault.operation;
  const bool seen = SeePhase(*client_, kind, fault.phase, *process);
  if (seen) {
    EXPECT_EQ(kill(pid, fault.signal), 0);
  }
  const absl::Time start = absl::Now();
  while (process->Running() && absl::Now() < start + kBound) {
    StepOther();
    absl::SleepFor(absl::Milliseconds(100));  // not to be the load that it runs under
  }
  const CtlResult result = Collect(*process, absl::Seconds(10));
  const double seconds = absl::ToDoubleSeconds(absl::Now() - start);
  std::cout << fault.operation << " ended " << seconds << " s after the fault\n";
  // A commit or a delete ends well without the rank, so its end alone says nothing; the daemon
  // was seen in the phase a moment before.
  const bool may_end_well = fault.phase == "commit" || fault.operation == "delete";
  // It was decided between the look and the signal.
  const bool too_late = fault.operation == "relayout" && fault.phase != "commit" &&
                        cli().Row("hit").value("generation", 0) == 2;
  if (!seen || (result.exit == 0 && !may_end_well) || too_late) {
    kill(pid, SIGCONT);
    for (const std::string& name : cli().EngineNames()) {
      if (name != "other") cli().Delete(name);
    }
    EXPECT_TRUE(daemon().WaitForRestart(fault.rank, seen && fault.signal == SIGKILL ? pid : -1));
    return false;
  }
  if (train != nullptr) {
    EXPECT_EQ(Collect(*train, absl::Seconds(30)).exit, 1);
  }
  ExpectOutcome(fault, result);
  StepOther();
  ExpectRanksServe(fault, pid);
  StepOther();
  EXPECT_GE(other_steps_, 2u);
  return true;
}

TEST_P(FaultGridTest, Fault_IsNamedAndNobodyElseNotices) {
  bool hit = false;
  for (int tries = 0; tries < kTries && !hit && !HasFailure(); ++tries) hit = TryToHit(GetParam());
  EXPECT_TRUE(hit) << "the phase was never hit";
}

}  // namespace regroup::harness
