// The Worker service over real sockets and groups: create, train, export, drop, abort, and what it
// refuses.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "daemon/worker/worker_cluster.h"
#include "proto/rpc_status.h"

namespace regroup {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

v1::ErrorReason ReasonIn(const absl::Status& status) {
  const std::optional<v1::ErrorDetail> detail = DetailOf(status);
  return detail.has_value() ? detail->reason() : v1::ERROR_REASON_UNSPECIFIED;
}

bool BrokenIn(const absl::Status& status) {
  const std::optional<v1::ErrorDetail> detail = DetailOf(status);
  return detail.has_value() && detail->engine_broken();
}

// Whether `condition` holds within a generous time. It is asked from a call to a worker each time.
bool ComesTrue(const std::function<bool()>& condition) {
  const absl::Time deadline = absl::Now() + absl::Seconds(15);
  while (!condition()) {
    if (absl::Now() > deadline) return false;
    absl::SleepFor(absl::Milliseconds(1));
  }
  return true;
}

// A folder's config for "random:FOLDER": 512 bytes of keys and values a token.
std::string WriteLlama(const WorkerCluster& cluster, const std::string& eps = "1e-6") {
  const std::string folder = absl::StrCat(cluster.folder(), "/llama", eps);
  mkdir(folder.c_str(), 0777);
  std::ofstream(folder + "/config.json")
      << R"({"model_type": "llama", "vocab_size": 257, "hidden_size": 64, "num_hidden_layers": 2,
             "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 160,
             "max_position_embeddings": 16777216, "rms_norm_eps": )"
      << eps << "}";
  return "random:" + folder;
}

v1::Command Prepare(const v1::EngineSpec& spec) {
  v1::Command command;
  *command.mutable_prepare_engine()->mutable_spec() = spec;
  return command;
}

v1::Command Step() {
  v1::Command command;
  command.mutable_train_step();
  return command;
}

v1::Command Drop() {
  v1::Command command;
  command.mutable_drop_engine();
  return command;
}

TEST(WorkerServiceTest, Train_OnRanks1And2_LearnsAndRank0HoldsNothing) {
  WorkerCluster cluster(3);
  cluster.Create(7, WorkerCluster::TrainerSpec("actor", {1, 2}));
  const std::vector<double> losses = cluster.Train(7, {1, 2}, 30);
  ASSERT_EQ(losses.size(), 30u);
  EXPECT_LT(losses.back(), losses.front() / 2);

  EXPECT_EQ(cluster.Engines(0).size(), 0u);
  const auto state = cluster.GetState(2);
  ASSERT_TRUE(state.ok()) << state.status();
  EXPECT_EQ(state->rank(), 2);
  EXPECT_EQ(state->incarnation(), WorkerCluster::Incarnation(2));
  EXPECT_GT(state->rss_bytes(), 0);
  EXPECT_GT(state->collectives_issued(), 0);
  EXPECT_EQ(state->commands_done(), 2 + 1 + 30);
  ASSERT_EQ(state->engines_size(), 1);
  const v1::HeldEngine& held = state->engines(0);
  EXPECT_EQ(held.name(), "actor");
  EXPECT_EQ(held.uid(), 7u);
  EXPECT_GT(held.memory().weights_bytes(), 0);
  EXPECT_EQ(held.memory().optimizer_bytes(), 2 * held.memory().weights_bytes());
  EXPECT_GE(held.memory().peak_bytes(), 3 * held.memory().weights_bytes());
  EXPECT_EQ(held.bytes_done(), held.bytes_total());
  ASSERT_EQ(held.groups_size(), 1);
  EXPECT_THAT(held.groups(0).ranks(), ElementsAre(1, 2));
  EXPECT_EQ(held.groups(0).parameters(), 5 * 17 + 17 + 17 * 17 + 17 + 17 * 2 + 2);
}

TEST(WorkerServiceTest, GetTrace_AfterTraining_ShowsUnitsInOrder) {
  WorkerCluster cluster(2);
  cluster.Create(7, WorkerCluster::TrainerSpec("actor", {0, 1}));
  cluster.Train(7, {0, 1}, 2);
  const auto trace = cluster.GetTrace(1, 7);
  ASSERT_TRUE(trace.ok()) << trace.status();
  EXPECT_EQ(trace->engine(), "actor");
  EXPECT_EQ(trace->rank(), 1);
  ASSERT_EQ(trace->passes_size(), 1);
  const v1::PassTrace& pass = trace->passes(0);
  EXPECT_EQ(pass.kind(), "train");
  EXPECT_EQ(pass.state(), "AGREED");
  ASSERT_GE(pass.entries_size(), 6);
  EXPECT_EQ(pass.entries(0).operation(), "gather");
  EXPECT_EQ(pass.entries(0).phase(), "forward");
  EXPECT_EQ(pass.entries(0).unit(), "layers.0");
  EXPECT_EQ(pass.entries(0).group(), "dp");
  EXPECT_THAT(pass.entries(0).parameter_ids(), ElementsAre(0, 1));
  for (int i = 0; i < pass.entries_size(); ++i) EXPECT_EQ(pass.entries(i).position(), i);
  EXPECT_EQ(cluster.GetTrace(1, 8).status().code(), absl::StatusCode::kNotFound);
}

TEST(WorkerServiceTest, Export_TwoRanks_SameAsOneRankWithTheSameSeed) {
  WorkerCluster cluster(3);
  cluster.Create(1, WorkerCluster::TrainerSpec("two", {0, 2}));
  cluster.Create(2, WorkerCluster::TrainerSpec("one", {1}));
  EXPECT_EQ(cluster.Export(1, {0, 2}), cluster.Export(2, {1}));
}

TEST(WorkerServiceTest, Export_FolderNotEmpty_IsRefusedOnAllRanksAndTrainingGoesOn) {
  WorkerCluster cluster(2);
  cluster.Create(1, WorkerCluster::TrainerSpec("actor", {0, 1}));
  std::ofstream(cluster.folder() + "/something") << "here";
  v1::Command command;
  command.mutable_export_engine()->set_directory(cluster.folder());
  for (const auto& [rank, result] : cluster.ExecuteOn({0, 1}, 1, command)) {
    EXPECT_EQ(result.status().code(), absl::StatusCode::kAlreadyExists) << result.status();
    EXPECT_THAT(std::string(result.status().message()), HasSubstr(cluster.folder()));
    EXPECT_FALSE(BrokenIn(result.status()));
  }
  EXPECT_EQ(cluster.Train(1, {0, 1}, 1).size(), 1u);
}

TEST(WorkerServiceTest, Drop_FreesTheEngineAndMayBeSaidTwice) {
  WorkerCluster cluster(2);
  cluster.Create(1, WorkerCluster::TrainerSpec("a", {0, 1}));
  cluster.Create(2, WorkerCluster::TrainerSpec("b", {0}));
  ASSERT_TRUE(FirstError(cluster.ExecuteOn({0, 1}, 1, Drop())).ok());
  ASSERT_TRUE(FirstError(cluster.ExecuteOn({0, 1}, 1, Drop())).ok());
  EXPECT_EQ(cluster.Engines(1).size(), 0u);
  ASSERT_EQ(cluster.Engines(0).size(), 1u);
  EXPECT_EQ(cluster.Engines(0)[0].name(), "b");
  EXPECT_EQ(cluster.Execute(0, 1, Step()).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(cluster.Train(2, {0}, 1).size(), 1u);
}

// Rank 1 is never told to step: rank 0 waits for it, and answers all the same.
TEST(WorkerServiceTest, Abort_HangingStep_EndsItAndTheEngineCanOnlyBeDropped) {
  WorkerCluster cluster(2);
  cluster.Create(1, WorkerCluster::TrainerSpec("actor", {0, 1}));
  cluster.Train(1, {0, 1}, 1);
  const int64_t issued = cluster.GetState(0)->collectives_issued();
  const absl::Time start = absl::Now();
  absl::Status status;
  std::thread step([&] { status = cluster.Execute(0, 1, Step()).status(); });
  EXPECT_TRUE(ComesTrue([&] { return cluster.GetState(0)->collectives_issued() > issued; }))
      << "the step does not begin";
  EXPECT_TRUE(cluster.GetTrace(0, 1).ok());
  EXPECT_TRUE(cluster.Abort(0, 1, "the engine is deleted", /*move_only=*/false).ok());
  step.join();
  EXPECT_EQ(status.code(), absl::StatusCode::kCancelled) << status;
  EXPECT_EQ(ReasonIn(status), v1::ERROR_REASON_CANCELLED);
  EXPECT_THAT(std::string(status.message()), HasSubstr("the engine is deleted"));
  EXPECT_LT(absl::Now() - start, absl::Seconds(15));  // not the engine's time limit

  const absl::Status after = cluster.Execute(0, 1, Step()).status();
  EXPECT_EQ(after.code(), absl::StatusCode::kFailedPrecondition) << after;
  EXPECT_EQ(ReasonIn(after), v1::ERROR_REASON_ENGINE_FAILED);
  EXPECT_TRUE(BrokenIn(status));
  EXPECT_TRUE(BrokenIn(after));
  EXPECT_TRUE(FirstError(cluster.ExecuteOn({0, 1}, 1, Drop())).ok());
}

TEST(WorkerServiceTest, Abort_WhileForming_EndsTheWait) {
  WorkerCluster cluster(2);
  const v1::EngineSpec spec = WorkerCluster::TrainerSpec("actor", {0, 1});
  ASSERT_TRUE(FirstError(cluster.ExecuteOn({0, 1}, 1, Prepare(spec))).ok());
  v1::Command form;
  *form.mutable_form_engine()->mutable_rendezvous() = *cluster.OpenRendezvous(0, 1);
  const absl::Time start = absl::Now();
  absl::Status status;
  std::thread forming([&] { status = cluster.Execute(0, 1, form).status(); });
  EXPECT_TRUE(cluster.Abort(0, 1, "cancelled by a client", /*move_only=*/false).ok());
  forming.join();
  EXPECT_FALSE(status.ok());
  EXPECT_LT(absl::Now() - start, absl::Seconds(15));
}

TEST(WorkerServiceTest, Abort_UnknownEngine_IsIgnored) {
  WorkerCluster cluster(1);
  EXPECT_TRUE(cluster.Abort(0, 99, "why not", /*move_only=*/false).ok());
}

TEST(WorkerServiceTest, Form_RanksWithOtherSeeds_AllRanksSayTheyDisagree) {
  WorkerCluster cluster(2);
  v1::EngineSpec spec = WorkerCluster::TrainerSpec("actor", {0, 1});
  ASSERT_TRUE(cluster.Execute(0, 1, Prepare(spec)).ok());
  spec.set_seed(4);
  ASSERT_TRUE(cluster.Execute(1, 1, Prepare(spec)).ok());
  v1::Command form;
  *form.mutable_form_engine()->mutable_rendezvous() = *cluster.OpenRendezvous(0, 1);
  for (const auto& [rank, result] : cluster.ExecuteOn({0, 1}, 1, form)) {
    EXPECT_EQ(result.status().code(), absl::StatusCode::kAborted) << result.status();
    EXPECT_EQ(ReasonIn(result.status()), v1::ERROR_REASON_RANKS_DISAGREE);
    EXPECT_THAT(std::string(result.status().message()), HasSubstr("'seed 3'"));
    EXPECT_THAT(std::string(result.status().message()), HasSubstr("'seed 4'"));
  }
}

TEST(WorkerServiceTest, Prepare_Fingerprint_IsOfTheParametersOnly) {
  WorkerCluster cluster(1);
  v1::EngineSpec spec = WorkerCluster::TrainerSpec("actor", {0});
  const auto first = cluster.Execute(0, 1, Prepare(spec));
  spec.set_seed(77);
  const auto reseeded = cluster.Execute(0, 1, Prepare(spec));
  spec.set_model("mlp:in=5,hidden=18,layers=3,out=2");
  const auto other = cluster.Execute(0, 1, Prepare(spec));
  ASSERT_TRUE(first.ok() && reseeded.ok() && other.ok());
  EXPECT_EQ(first->prepare_engine().units(), 3);
  EXPECT_EQ(first->prepare_engine().dtype(), v1::DTYPE_FP32);
  EXPECT_EQ(first->prepare_engine().fingerprint(), reseeded->prepare_engine().fingerprint());
  EXPECT_NE(first->prepare_engine().fingerprint(), other->prepare_engine().fingerprint());
}

TEST(WorkerServiceTest, Prepare_Fingerprint_IsOfTheConfigToo) {
  WorkerCluster cluster(1);
  v1::EngineSpec spec = WorkerCluster::TrainerSpec("actor", {0});
  spec.set_model(WriteLlama(cluster));
  const auto first = cluster.Execute(0, 1, Prepare(spec));
  spec.set_model(WriteLlama(cluster, "1e-5"));
  const auto other = cluster.Execute(0, 1, Prepare(spec));
  ASSERT_TRUE(first.ok()) << first.status();
  ASSERT_TRUE(other.ok()) << other.status();
  EXPECT_NE(first->prepare_engine().fingerprint(), other->prepare_engine().fingerprint());
}

TEST(WorkerServiceTest, Prepare_SaysWhatItNeedsAndWhatThereIs) {
  WorkerCluster cluster(1);
  v1::EngineSpec spec = WorkerCluster::TrainerSpec("actor", {0});
  spec.set_role(v1::ROLE_INFER);
  const auto prepared = cluster.Execute(0, 1, Prepare(spec));
  ASSERT_TRUE(prepared.ok()) << prepared.status();
  EXPECT_EQ(prepared->prepare_engine().needed_bytes(),
            4 * (5 * 17 + 17 + 17 * 17 + 17 + 17 * 2 + 2));
  EXPECT_GT(prepared->prepare_engine().available_bytes(), 1 << 20);
}

TEST(WorkerServiceTest, Generate_CachesTooLarge_AreRefusedAndSmallOnesCounted) {
  WorkerCluster cluster(1);
  v1::EngineSpec spec = WorkerCluster::TrainerSpec("rollout", {0});
  spec.set_role(v1::ROLE_INFER);
  spec.set_model(WriteLlama(cluster));
  cluster.Create(1, spec);
  v1::Command start;
  for (int row = 0; row < 2000; ++row) {
    v1::Row* added = start.mutable_start_generation()->add_rows();
    added->set_row(row);
    added->add_tokens(7);
  }
  start.mutable_start_generation()->set_max_tokens(10000000);
  const absl::Status status = cluster.Execute(0, 1, start).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  EXPECT_EQ(ReasonIn(status), v1::ERROR_REASON_MEMORY);
  EXPECT_THAT(std::string(status.message()), HasSubstr("2000 prompts with --max-tokens=10000000"));
  EXPECT_EQ(cluster.Engines(0)[0].memory().buffers_bytes(), 0);

  start.mutable_start_generation()->set_max_tokens(3);
  start.mutable_start_generation()->add_stop_tokens(7);  // in place of the config's
  ASSERT_TRUE(cluster.Execute(0, 1, start).ok());
  const auto memory = cluster.Engines(0)[0].memory();
  EXPECT_EQ(memory.buffers_bytes(), 2000 * 4 * 512);
  EXPECT_EQ(memory.peak_bytes(), memory.weights_bytes() + memory.buffers_bytes());

  // An abort of what ran before does not reach the next command.
  EXPECT_TRUE(cluster.Abort(0, 1, "too late", /*move_only=*/false).ok());
  v1::Command decode;
  decode.mutable_decode_token();
  const auto decoded = cluster.Execute(0, 1, decode);
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  EXPECT_EQ(decoded->decode_token().tokens_size(), 512);  // as many prompts of one token
  EXPECT_EQ(decoded->decode_token().unfinished(), 2000);
  v1::Command end;
  end.mutable_end_generation();
  ASSERT_TRUE(cluster.Execute(0, 1, end).ok());
  EXPECT_EQ(cluster.Engines(0)[0].memory().buffers_bytes(), 0);
}

TEST(WorkerServiceTest, CheckTraining_StepTooLargeForTheMachine_NamesBatchAndSeq) {
  WorkerCluster cluster(1);
  v1::EngineSpec spec = WorkerCluster::TrainerSpec("actor", {0});
  spec.set_model(WriteLlama(cluster));
  cluster.Create(1, spec);
  const std::string path = cluster.folder() + "/data.u16.bin";
  std::ofstream(path, std::ios::binary) << std::string(120000, '\0');
  v1::Command command;
  v1::CheckTraining* check = command.mutable_check_training();
  check->set_data(path);
  check->set_steps(1);
  check->set_batch(65536);
  check->set_seq(50000);
  const absl::Status status = cluster.Execute(0, 1, command).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("--batch=65536 and --seq=50000"));
  EXPECT_FALSE(BrokenIn(status));
  check->set_batch(1);
  check->set_seq(10);
  const auto checked = cluster.Execute(0, 1, command);
  ASSERT_TRUE(checked.ok()) << checked.status();
  EXPECT_THAT(checked->check_training().digest(), HasSubstr("120000 bytes"));
}

TEST(WorkerServiceTest, Export_Progress_IsTheLeadsOwn) {
  WorkerCluster cluster(2);
  cluster.Create(1, WorkerCluster::TrainerSpec("actor", {0, 1}));
  cluster.Export(1, {0, 1});
  const int64_t bytes = 4 * (5 * 17 + 17 + 17 * 17 + 17 + 17 * 2 + 2);
  EXPECT_EQ(cluster.Engines(0)[0].bytes_done(), bytes);
  EXPECT_EQ(cluster.Engines(0)[0].bytes_total(), bytes);
  EXPECT_EQ(cluster.Engines(1)[0].bytes_total(), 0);
  cluster.Train(1, {0, 1}, 1);
  EXPECT_EQ(cluster.Engines(0)[0].bytes_done(), 0);
}

TEST(WorkerServiceTest, Prepare_TooLargeForTheMachine_GivesBothNumbers) {
  WorkerCluster cluster(1);
  v1::EngineSpec spec = WorkerCluster::TrainerSpec("actor", {0});
  spec.set_model("mlp:in=1000000,hidden=1000000,layers=2,out=1");
  const absl::Status status = cluster.Execute(0, 1, Prepare(spec)).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  EXPECT_EQ(ReasonIn(status), v1::ERROR_REASON_MEMORY);
  EXPECT_THAT(std::string(status.message()), HasSubstr("engine actor on rank 0 needs "));
  EXPECT_EQ(cluster.Engines(0).size(), 0u);
}

TEST(WorkerServiceTest, Prepare_WrongSpecs_AreRefusedAndNothingIsHeld) {
  WorkerCluster cluster(1);
  const v1::EngineSpec good = WorkerCluster::TrainerSpec("actor", {0});
  const auto expect_refused = [&](const v1::EngineSpec& spec, absl::StatusCode code,
                                  const std::string& word) {
    const absl::Status status = cluster.Execute(0, 1, Prepare(spec)).status();
    EXPECT_EQ(status.code(), code) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(word));
    EXPECT_EQ(cluster.Engines(0).size(), 0u);
  };
  v1::EngineSpec spec = good;
  spec.set_model("mlp:in=0");
  expect_refused(spec, absl::StatusCode::kInvalidArgument, "mlp");
  spec = good;
  spec.set_model("/nonexistent/folder");
  expect_refused(spec, absl::StatusCode::kNotFound, "/nonexistent/folder");
  spec = good;
  spec.mutable_layout()->set_ranks(0, 5);
  expect_refused(spec, absl::StatusCode::kInvalidArgument, "rank 0 is not one of");
  spec = good;
  spec.add_shard_over("x:dp");
  expect_refused(spec, absl::StatusCode::kUnimplemented, "not available in this version");
}

TEST(WorkerServiceTest, CheckTraining_WrongNumbers_NameTheFlag) {
  WorkerCluster cluster(1);
  cluster.Create(1, WorkerCluster::TrainerSpec("actor", {0}));
  const std::string data = cluster.WriteData();
  const auto refused = [&](int64_t steps, int64_t batch, int64_t accumulate,
                           const std::string& path) {
    v1::Command command;
    v1::CheckTraining* check = command.mutable_check_training();
    check->set_data(path);
    check->set_steps(steps);
    check->set_batch(batch);
    check->set_accumulate(accumulate);
    return std::string(cluster.Execute(0, 1, command).status().message());
  };
  EXPECT_THAT(refused(0, 4, 0, data), HasSubstr("--steps=0"));
  EXPECT_THAT(refused(1, -4, 0, data), HasSubstr("--batch=-4"));
  EXPECT_THAT(refused(1, int64_t{1} << 50, 0, data), HasSubstr("--batch=1125899906842624"));
  EXPECT_THAT(refused(1, 4, -1, data), HasSubstr("--accumulate=-1; allowed: 1 to 4"));
  EXPECT_THAT(refused(1, 4, 5, data), HasSubstr("--accumulate=5; allowed: 1 to 4 (--batch)"));
  EXPECT_THAT(refused(1, 4, 0, data + ".missing"), HasSubstr(".missing"));
  EXPECT_EQ(cluster.Execute(0, 1, Step()).status().code(),
            absl::StatusCode::kFailedPrecondition);  // nothing was checked
}

TEST(WorkerServiceTest, Commands_ForTheOtherRole_AreRefused) {
  WorkerCluster cluster(1);
  cluster.Create(1, WorkerCluster::TrainerSpec("actor", {0}));
  v1::EngineSpec spec = WorkerCluster::TrainerSpec("rollout", {0});
  spec.set_role(v1::ROLE_INFER);
  cluster.Create(2, spec);
  v1::Command decode;
  decode.mutable_decode_token();
  EXPECT_EQ(cluster.Execute(0, 1, decode).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(cluster.Execute(0, 2, Step()).status().code(), absl::StatusCode::kFailedPrecondition);
  v1::Command generate;
  generate.mutable_start_generation()->set_max_tokens(1);
  const absl::Status status = cluster.Execute(0, 2, generate).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("allowed: a language model"));
}

TEST(WorkerServiceTest, Call_OtherIncarnation_IsStale) {
  WorkerCluster cluster(1);
  v1::Command command = Drop();
  command.set_incarnation(5);
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + WorkerCluster::kDeadline));
  v1::CommandResult result;
  const absl::Status status = FromGrpc(cluster.stub(0).Execute(&context, command, &result));
  EXPECT_EQ(status.code(), absl::StatusCode::kAborted);
  EXPECT_EQ(ReasonIn(status), v1::ERROR_REASON_STALE);
}

TEST(WorkerServiceTest, Call_WithoutDeadline_IsRefused) {
  WorkerCluster cluster(1);
  grpc::ClientContext context;
  v1::WorkerState state;
  const absl::Status status = FromGrpc(cluster.stub(0).GetState(&context, {}, &state));
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("deadline"));
}

TEST(WorkerServiceTest, Execute_EmptyCommand_IsRefused) {
  WorkerCluster cluster(1);
  EXPECT_EQ(cluster.Execute(0, 1, {}).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace regroup
