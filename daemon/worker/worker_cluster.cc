#include "daemon/worker/worker_cluster.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/security/credentials.h"
#include "proto/rpc_status.h"

namespace regroup {
namespace {

std::string SocketPath(const std::string& folder, int rank) {
  return absl::StrCat(folder, "/", rank, ".sock");
}

void SetDeadline(grpc::ClientContext* context) {
  context->set_deadline(absl::ToChronoTime(absl::Now() + WorkerCluster::kDeadline));
}

}  // namespace

WorkerCluster::WorkerCluster(int ranks) {
  char path[] = "/tmp/regroup-test-XXXXXX";  // short: a socket path has 108 bytes
  folder_ = mkdtemp(path);
  for (int rank = 0; rank < ranks; ++rank) {
    auto server =
        WorkerServer::Start({rank, Incarnation(rank), "127.0.0.1"}, SocketPath(folder_, rank));
    EXPECT_TRUE(server.ok()) << server.status();
    servers_.push_back(*std::move(server));
    stubs_.push_back(v1::Worker::NewStub(grpc::CreateChannel(
        absl::StrCat("unix:", SocketPath(folder_, rank)), grpc::InsecureChannelCredentials())));
  }
}

WorkerCluster::~WorkerCluster() {
  stubs_.clear();
  servers_.clear();
  std::filesystem::remove_all(folder_);
}

v1::EngineSpec WorkerCluster::TrainerSpec(const std::string& name, const std::vector<int>& ranks) {
  v1::EngineSpec spec;
  spec.set_name(name);
  spec.set_model("mlp:in=5,hidden=17,layers=3,out=2");
  spec.set_role(v1::ROLE_TRAIN);
  for (int rank : ranks) spec.mutable_layout()->add_ranks(rank);
  spec.mutable_optimizer()->set_name("adamw");
  spec.mutable_optimizer()->set_learning_rate(0.01);
  spec.mutable_optimizer()->set_beta1(0.9);
  spec.mutable_optimizer()->set_beta2(0.999);
  spec.mutable_optimizer()->set_eps(1e-8);
  spec.set_seed(3);
  spec.mutable_timeout()->set_seconds(20);
  return spec;
}

std::string WorkerCluster::WriteData() {
  std::string path = absl::StrCat(folder_, "/data.jsonl");
  std::ofstream file(path);
  for (int row = 0; row < 16; ++row) {
    const double x = row / 16.0;
    file << absl::StrCat("{\"x\": [", x, ", ", x * x, ", ", 1 - x, ", 1, ", -x, "], \"y\": [",
                         2 * x, ", ", 1 - x, "]}\n");
  }
  return path;
}

absl::StatusOr<v1::CommandResult> WorkerCluster::Execute(int rank, uint64_t uid,
                                                         v1::Command command) {
  command.set_incarnation(Incarnation(rank));
  command.set_engine_uid(uid);
  grpc::ClientContext context;
  SetDeadline(&context);
  v1::CommandResult result;
  const absl::Status status = FromGrpc(stubs_[rank]->Execute(&context, command, &result));
  if (!status.ok()) return status;
  return result;
}

WorkerCluster::Results WorkerCluster::ExecuteOn(const std::vector<int>& ranks, uint64_t uid,
                                                const v1::Command& command) {
  return ExecuteOn(ranks, uid, [&](int) { return command; });
}

WorkerCluster::Results WorkerCluster::ExecuteOn(
    const std::vector<int>& ranks, uint64_t uid,
    const std::function<v1::Command(int rank)>& command) {
  absl::Mutex mutex;
  Results results;
  std::vector<std::thread> threads;
  threads.reserve(ranks.size());
  for (int rank : ranks) {
    threads.emplace_back([&, rank] {
      auto result = Execute(rank, uid, command(rank));
      absl::MutexLock lock(&mutex);
      results.emplace(rank, std::move(result));
    });
  }
  for (std::thread& thread : threads) thread.join();
  return results;
}

absl::StatusOr<v1::Rendezvous> WorkerCluster::OpenRendezvous(int rank, uint64_t uid) {
  v1::OpenRendezvousRequest request;
  request.set_incarnation(Incarnation(rank));
  request.set_engine_uid(uid);
  request.set_attempt(++attempts_);
  request.set_host("127.0.0.1");
  grpc::ClientContext context;
  SetDeadline(&context);
  v1::Rendezvous rendezvous;
  const absl::Status status =
      FromGrpc(stubs_[rank]->OpenRendezvous(&context, request, &rendezvous));
  if (!status.ok()) return status;
  return rendezvous;
}

absl::StatusOr<v1::WorkerState> WorkerCluster::GetState(int rank) {
  grpc::ClientContext context;
  SetDeadline(&context);
  v1::WorkerState state;
  const absl::Status status = FromGrpc(stubs_[rank]->GetState(&context, {}, &state));
  if (!status.ok()) return status;
  return state;
}

std::vector<v1::HeldEngine> WorkerCluster::Engines(int rank) {
  const auto state = GetState(rank);
  EXPECT_TRUE(state.ok()) << state.status();
  if (!state.ok()) return {};
  return {state->engines().begin(), state->engines().end()};
}

absl::StatusOr<v1::EngineTrace> WorkerCluster::GetTrace(int rank, uint64_t uid) {
  v1::WorkerTraceRequest request;
  request.set_engine_uid(uid);
  grpc::ClientContext context;
  SetDeadline(&context);
  v1::EngineTrace trace;
  const absl::Status status = FromGrpc(stubs_[rank]->GetTrace(&context, request, &trace));
  if (!status.ok()) return status;
  return trace;
}

absl::Status WorkerCluster::Abort(int rank, uint64_t uid, const std::string& reason,
                                  bool move_only) {
  v1::AbortRequest request;
  request.set_incarnation(Incarnation(rank));
  request.set_engine_uid(uid);
  request.set_reason(reason);
  request.set_move_only(move_only);
  grpc::ClientContext context;
  SetDeadline(&context);
  v1::AbortResponse response;
  return FromGrpc(stubs_[rank]->Abort(&context, request, &response));
}

void WorkerCluster::Create(uint64_t uid, const v1::EngineSpec& spec) {
  const std::vector<int> ranks(spec.layout().ranks().begin(), spec.layout().ranks().end());
  v1::Command prepare;
  *prepare.mutable_prepare_engine()->mutable_spec() = spec;
  const absl::Status prepared = FirstError(ExecuteOn(ranks, uid, prepare));
  ASSERT_TRUE(prepared.ok()) << prepared;
  const auto rendezvous = OpenRendezvous(ranks[0], uid);
  ASSERT_TRUE(rendezvous.ok()) << rendezvous.status();
  v1::Command form;
  *form.mutable_form_engine()->mutable_rendezvous() = *rendezvous;
  const absl::Status formed = FirstError(ExecuteOn(ranks, uid, form));
  ASSERT_TRUE(formed.ok()) << formed;
}

std::vector<double> WorkerCluster::Train(uint64_t uid, const std::vector<int>& ranks, int steps) {
  v1::Command check;
  check.mutable_check_training()->set_data(WriteData());
  check.mutable_check_training()->set_steps(steps);
  check.mutable_check_training()->set_batch(5);
  const absl::Status checked = FirstError(ExecuteOn(ranks, uid, check));
  EXPECT_TRUE(checked.ok()) << checked;
  std::vector<double> losses;
  v1::Command step;
  step.mutable_train_step();
  for (int i = 0; i < steps; ++i) {
    const Results results = ExecuteOn(ranks, uid, step);
    const absl::Status stepped = FirstError(results);
    EXPECT_TRUE(stepped.ok()) << stepped;
    if (!stepped.ok()) break;
    losses.push_back(results.at(ranks[0])->train_step().record().loss());
  }
  return losses;
}

std::string WorkerCluster::Export(uint64_t uid, const std::vector<int>& ranks) {
  const std::string directory = absl::StrCat(folder_, "/export", ++exports_);
  v1::Command command;
  command.mutable_export_engine()->set_directory(directory);
  const absl::Status exported = FirstError(ExecuteOn(ranks, uid, command));
  EXPECT_TRUE(exported.ok()) << exported;
  std::ifstream file(directory + "/model.safetensors", std::ios::binary);
  std::stringstream bytes;
  bytes << file.rdbuf();
  EXPECT_FALSE(bytes.str().empty());
  return bytes.str();
}

absl::Status FirstError(const WorkerCluster::Results& results) {
  for (const auto& [rank, result] : results) {
    if (!result.ok()) return result.status();
  }
  return absl::OkStatus();
}

}  // namespace regroup
