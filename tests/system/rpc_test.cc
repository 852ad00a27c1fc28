// The wire itself: what regroupctl does not let one do, and the fields that scripts read.
#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "grpcpp/create_channel.h"
#include "proto/rpc_status.h"
#include "regroup/v1/control.grpc.pb.h"
#include "tests/system/cli.h"
#include "tests/system/fixtures.h"

namespace regroup::harness {
namespace {

class RpcTest : public FixtureTest {
 protected:
  static void SetUpTestSuite() { StartDaemonOnFixtures(2); }

  void SetUp() override {
    FixtureTest::SetUp();
    stub_ = v1::Control::NewStub(
        grpc::CreateChannel(daemon().address(), grpc::InsecureChannelCredentials()));
  }

  static v1::CreateEngineRequest Request(const std::string& id, const std::string& name) {
    v1::CreateEngineRequest request;
    request.set_request_id(id);
    request.mutable_spec()->set_name(name);
    request.mutable_spec()->set_model(kMlpSpec);
    request.mutable_spec()->set_role(v1::ROLE_TRAIN);
    request.mutable_spec()->mutable_layout()->add_ranks(0);
    request.mutable_spec()->mutable_optimizer()->set_name("sgd");
    request.mutable_spec()->mutable_optimizer()->set_learning_rate(0.1);
    return request;
  }

  static void SetDeadline(grpc::ClientContext* context) {
    context->set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
  }

  grpc::Status Create(const v1::CreateEngineRequest& request, v1::Operation* operation) {
    grpc::ClientContext context;
    SetDeadline(&context);
    return stub_->CreateEngine(&context, request, operation);
  }

  std::unique_ptr<v1::Control::Stub> stub_;
};

TEST_F(RpcTest, UnaryCall_WithoutADeadline_IsRefused) {
  grpc::ClientContext context;
  v1::GetStatusResponse response;
  const grpc::Status status = stub_->GetStatus(&context, {}, &response);
  EXPECT_EQ(status.error_code(), grpc::INVALID_ARGUMENT);
  EXPECT_NE(status.error_message().find("deadline"), std::string::npos) << status.error_message();
}

// Once means once, whoever restarted in between.
TEST(RpcRestartTest, CreateEngine_SameRequestIdAfterARestart_ReturnsTheFirstAnswer) {
  DaemonOptions options;
  options.ranks = 1;
  options.state_dir = NewFolder("state");
  v1::CreateEngineRequest request;
  request.set_request_id("id-over-a-restart");
  request.mutable_spec()->set_name("e");
  request.mutable_spec()->set_model(kMlpSpec);
  request.mutable_spec()->mutable_layout()->add_ranks(0);
  request.mutable_spec()->mutable_optimizer()->set_name("sgd");
  request.mutable_spec()->mutable_optimizer()->set_learning_rate(0.1);
  std::string id;
  for (int start = 0; start < 2; ++start) {
    const auto daemon = Daemon::Start(options);
    ASSERT_NE(daemon, nullptr);
    const auto stub = v1::Control::NewStub(
        grpc::CreateChannel(daemon->address(), grpc::InsecureChannelCredentials()));
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
    v1::Operation operation;
    const grpc::Status status = stub->CreateEngine(&context, request, &operation);
    ASSERT_TRUE(status.ok()) << status.error_message();
    if (start == 0) {
      id = operation.id();
      daemon->ctl().MustRun({"operation", "watch", id});
      EXPECT_EQ(daemon->Stop(SIGKILL), 128 + SIGKILL);
      continue;
    }
    EXPECT_EQ(operation.id(), id);
    EXPECT_TRUE(operation.done());
    EXPECT_EQ(operation.error(), "");
    const Cli cli(*daemon);
    // Its rank ended with the daemon.
    EXPECT_TRUE(WaitUntil(absl::Seconds(20), [&] { return cli.State("e") == "FAILED"; }));
  }
}

TEST_F(RpcTest, CreateEngine_SameRequestId_ReturnsTheFirstAnswer) {
  v1::Operation first;
  v1::Operation again;
  ASSERT_TRUE(Create(Request("id-1", "e"), &first).ok());
  ASSERT_TRUE(Create(Request("id-1", "e"), &again).ok());
  EXPECT_EQ(again.id(), first.id());
  cli().ctl().MustRun({"operation", "watch", first.id()});
  EXPECT_EQ(cli().EngineNames(), std::vector<std::string>{"e"});
  // The answer of before, even though the engine is gone.
  cli().Delete("e");
  ASSERT_TRUE(Create(Request("id-1", "e"), &again).ok());
  EXPECT_EQ(again.id(), first.id());
  EXPECT_TRUE(cli().EngineNames().empty());
}

TEST_F(RpcTest, CreateEngine_SameRequestIdOtherRequest_IsAlreadyExists) {
  v1::Operation operation;
  ASSERT_TRUE(Create(Request("id-2", "e"), &operation).ok());
  const grpc::Status status = Create(Request("id-2", "other"), &operation);
  EXPECT_EQ(status.error_code(), grpc::ALREADY_EXISTS) << status.error_message();
}

TEST_F(RpcTest, Errors_CarryTheirDetail) {
  grpc::ClientContext context;
  SetDeadline(&context);
  v1::DescribeEngineRequest request;
  request.set_name("nobody");
  v1::Engine engine;
  const grpc::Status status = stub_->DescribeEngine(&context, request, &engine);
  EXPECT_EQ(status.error_code(), grpc::NOT_FOUND);
  const std::optional<v1::ErrorDetail> detail = DetailOf(FromGrpc(status));
  ASSERT_TRUE(detail.has_value());
  EXPECT_NE(detail->reason(), v1::ERROR_REASON_UNSPECIFIED);
  EXPECT_NE(status.error_message().find("nobody"), std::string::npos) << status.error_message();
}

void ExpectFields(const nlohmann::json& object, const std::vector<std::string>& fields) {
  for (const std::string& field : fields)
    EXPECT_TRUE(object.contains(field)) << field << ": " << object;
}

TEST_F(RpcTest, Json_EveryCommand_HasTheFieldsThatScriptsRead) {
  const Ctl& ctl = cli().ctl();
  ExpectFields(
      ctl.MustRun({"engine", "create", "e", "--ranks=0-1", "--model=" + Data().untied.folder,
                   "--lr=0.1"})
          .json(),
      {"id", "kind", "engine", "phase", "done", "error", "seconds", "bytesMoved", "peakBytes"});
  const std::vector<nlohmann::json> steps =
      ctl.MustRun(TrainCommand("e", {Data().text.path, 2, 2, kSeq, {}})).rows();
  ASSERT_EQ(steps.size(), 2u);
  ExpectFields(steps[0], {"step", "loss", "gradNorm", "tokens", "seconds", "skipped"});
  const nlohmann::json ranks = ctl.MustRun({"rank", "list"}).json()["ranks"];
  ASSERT_EQ(ranks.size(), 2u);
  ExpectFields(ranks[1], {"rank", "node", "pid", "state", "engines"});
  EXPECT_EQ(ranks[1]["state"], "READY");
  EXPECT_EQ(ranks[1]["engines"], std::vector<std::string>{"e"});
  const nlohmann::json nodes = ctl.MustRun({"node", "list"}).json()["nodes"];
  ASSERT_EQ(nodes.size(), 1u);
  ExpectFields(nodes[0], {"node", "address", "ranks", "state"});
  EXPECT_EQ(nodes[0]["node"], "a");
  const std::vector<std::string> engine_fields = {
      "name", "ranks", "role", "state", "generation", "step", "dataPosition", "weightsVersion"};
  const nlohmann::json row = cli().Row("e");
  ExpectFields(row, engine_fields);
  EXPECT_EQ(row["role"], "TRAIN");
  EXPECT_EQ(row["state"], "READY");
  const nlohmann::json described = cli().Describe("e");
  ExpectFields(described, engine_fields);
  ASSERT_EQ(described["groups"].size(), 1u);
  ExpectFields(described["groups"][0], {"name", "ranks", "parameters"});
  ASSERT_EQ(described["memory"].size(), 2u);
  ExpectFields(described["memory"][0],
               {"rank", "weightsBytes", "optimizerBytes", "buffersBytes", "peakBytes"});
  // Half of the weights, and twice as much of moments, with some padding.
  const auto weights = described["memory"][0]["weightsBytes"].get<int64_t>();
  EXPECT_GE(weights, 119232 * 4 / 2);
  EXPECT_LE(weights, 119232 * 4 / 2 + 4096);
  EXPECT_EQ(described["memory"][0]["optimizerBytes"], 2 * weights);
  ExpectFields(ctl.MustRun({"status"}).json(), {"nodes", "ranks", "engines", "operations"});
  ExpectFields(ctl.MustRun({"engine", "trace", "e"}).json(), {"engine", "groups", "passes"});
  const nlohmann::json operations = ctl.MustRun({"operation", "list"}).json()["operations"];
  ASSERT_GE(operations.size(), 1u);
  const std::string id = operations.back()["id"];
  EXPECT_EQ(ctl.MustRun({"operation", "describe", id}).json()["id"], id);
  ExpectFields(ctl.MustRun({"engine", "delete", "e"}).json(), {"id", "done", "error"});
}

TEST_F(RpcTest, NoWait_ReturnsAtOnceAndWatchEndsWithTheOutcome) {
  const nlohmann::json accepted = cli()
                                      .ctl()
                                      .MustRun({"engine", "create", "e", "--ranks=0-1", "--lr=0.1",
                                                "--no-wait", "--model=" + Data().untied.folder})
                                      .json();
  const std::vector<nlohmann::json> states =
      cli().ctl().MustRun({"operation", "watch", accepted["id"]}).rows();
  ASSERT_FALSE(states.empty());
  EXPECT_EQ(states.back()["done"], true);
  EXPECT_EQ(states.back()["error"], "");
  EXPECT_EQ(cli().State("e"), "READY");
}

int ThreadsOf(pid_t pid) {
  std::istringstream lines(ReadFile("/proc/" + std::to_string(pid) + "/status"));
  for (std::string word; lines >> word;) {
    if (word != "Threads:") continue;
    int threads = 0;
    lines >> threads;
    return threads;
  }
  return 0;
}

// Streams that are open, read or not, take no thread from anybody.
TEST_F(RpcTest, ManyStreams_HoldUpNothingAndTakeNoThreads) {
  cli().Create("busy", "0", kMlpSpec, {"--lr=0.01"});
  cli().Create("idle", "1", kMlpSpec, {"--lr=0.01"});
  const auto context = [] {
    auto made = std::make_unique<grpc::ClientContext>();
    made->set_deadline(std::chrono::system_clock::now() + std::chrono::minutes(2));
    return made;
  };
  struct Training {
    std::unique_ptr<grpc::ClientContext> context;
    std::unique_ptr<grpc::ClientReader<v1::TrainRecord>> reader;
  };
  std::vector<Training> trainings;  // one runs, eight wait for it
  for (int i = 0; i < 9; ++i) {
    v1::TrainRequest request;
    request.set_request_id("many-" + std::to_string(i));
    request.set_name("busy");
    request.set_data(Data().mlp_path);
    request.set_steps(1000000000);
    request.set_batch(1);
    Training training{context(), nullptr};
    training.reader = stub_->Train(training.context.get(), request);
    training.reader->WaitForInitialMetadata();  // it has its place
    trainings.push_back(std::move(training));
  }
  v1::TrainRecord record;
  ASSERT_TRUE(trainings[0].reader->Read(&record));
  const int before = ThreadsOf(daemon().process().pid());
  ASSERT_GT(before, 0);

  v1::GetOperationRequest request;
  request.set_id(record.operation());
  std::vector<std::unique_ptr<grpc::ClientContext>> contexts;
  std::vector<std::unique_ptr<grpc::ClientReader<v1::Operation>>> watches;
  for (int i = 0; i < 64; ++i) {
    contexts.push_back(context());
    watches.push_back(stub_->WatchOperation(contexts.back().get(), request));
    v1::Operation operation;
    ASSERT_TRUE(watches.back()->Read(&operation));
    EXPECT_FALSE(operation.done());
  }
  grpc::ClientContext status_context;
  SetDeadline(&status_context);
  v1::GetStatusResponse response;
  EXPECT_TRUE(stub_->GetStatus(&status_context, {}, &response).ok());
  EXPECT_EQ(response.operations_size(), 9);
  EXPECT_LT(ThreadsOf(daemon().process().pid()), before + 32);
  cli().Delete("idle");

  for (const auto& watched : contexts) watched->TryCancel();
  for (const auto& watch : watches) EXPECT_EQ(watch->Finish().error_code(), grpc::CANCELLED);
  for (const Training& training : trainings) training.context->TryCancel();
  for (const Training& training : trainings) {
    EXPECT_EQ(training.reader->Finish().error_code(), grpc::CANCELLED);
  }
  cli().Delete("busy");
}

// For people: no JSON, but the names.
TEST_F(RpcTest, Table_ShowsEnginesOnRanks) {
  cli().Create("somebody", "0-1", kMlpSpec, {"--lr=0.1"});
  for (const std::vector<std::string>& command : {std::vector<std::string>{"status"},
                                                  {"engine", "list"},
                                                  {"rank", "list"},
                                                  {"engine", "describe", "somebody"},
                                                  {"engine", "trace", "somebody"}}) {
    std::vector<std::string> argv = {Runfile("client/regroupctl"),
                                     "--server=" + daemon().address()};
    argv.insert(argv.end(), command.begin(), command.end());
    const auto process = Process::Start(argv);
    EXPECT_EQ(process->Finish(absl::Seconds(20)), 0) << process->Errors();
    EXPECT_NE(process->Output().find("somebody"), std::string::npos) << process->Output();
    EXPECT_EQ(process->Output().find('{'), std::string::npos) << process->Output();
  }
}

}  // namespace
}  // namespace regroup::harness
