// The service over a real connection.
#include "daemon/control/control_service.h"

#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "daemon/control/control_server.h"
#include "daemon/control/fake_cluster.h"
#include "daemon/control/stream_writer.h"
#include "gmock/gmock.h"
#include "grpcpp/create_channel.h"
#include "gtest/gtest.h"
#include "proto/rpc_status.h"

namespace regroup {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;

class ServiceTest : public ::testing::Test {
 protected:
  ServiceTest() : cluster_(2) {
    auto server = ControlServer::Start("127.0.0.1", 0, &cluster_.control());
    EXPECT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    stub_ = v1::Control::NewStub(
        grpc::CreateChannel(server_->address(), grpc::InsecureChannelCredentials()));
  }
  ~ServiceTest() override { server_->Shutdown(absl::ZeroDuration()); }

  static void SetDeadline(grpc::ClientContext& context) {
    context.set_deadline(absl::ToChronoTime(absl::Now() + kPatience));
  }

  bool AwaitStep(const std::string& engine, int64_t step) {
    const absl::Time deadline = absl::Now() + kPatience;
    while (cluster_.Describe(engine).step() < step && absl::Now() < deadline) {
      absl::SleepFor(absl::Milliseconds(1));
    }
    return cluster_.Describe(engine).step() >= step;
  }

  // The id that the stream's initial metadata carry.
  static std::string OperationOf(const grpc::ClientContext& context) {
    const auto& metadata = context.GetServerInitialMetadata();
    const auto entry = metadata.find("regroup-operation");
    if (entry == metadata.end()) return "";
    return std::string(entry->second.data(), entry->second.size());
  }

  FakeCluster cluster_;
  std::unique_ptr<ControlServer> server_;
  std::unique_ptr<v1::Control::Stub> stub_;
};

TEST_F(ServiceTest, Unary_WithoutDeadline_IsRefused) {
  grpc::ClientContext context;
  v1::GetStatusResponse response;
  const absl::Status status =
      FromGrpc(stub_->GetStatus(&context, v1::GetStatusRequest(), &response));
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("deadline"));
  grpc::ClientContext mutation;
  v1::Operation operation;
  EXPECT_EQ(
      stub_->CreateEngine(&mutation, FakeCluster::CreateRequest("a", {0}), &operation).error_code(),
      grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(cluster_.control().Status().engines(), SizeIs(0));
}

TEST_F(ServiceTest, Errors_CarryTheirDetail) {
  grpc::ClientContext context;
  SetDeadline(context);
  v1::Operation operation;
  v1::CreateEngineRequest request = FakeCluster::CreateRequest("a", {0});
  request.mutable_spec()->mutable_optimizer()->set_learning_rate(-1);
  const absl::Status status = FromGrpc(stub_->CreateEngine(&context, request, &operation));
  EXPECT_THAT(status.message(), HasSubstr("--lr=-1"));
  ASSERT_TRUE(DetailOf(status).has_value());
  EXPECT_EQ(DetailOf(status)->reason(), v1::ERROR_REASON_INVALID_FIELD);
}

TEST_F(ServiceTest, WatchOperation_EndsWithTheOperation) {
  absl::Notification release;
  cluster_.SetScript([&](FakeWorker& worker, const v1::Command& command) {
    if (command.has_form_engine()) release.WaitForNotification();
    return absl::OkStatus();
  });
  grpc::ClientContext context;
  SetDeadline(context);
  v1::Operation operation;
  ASSERT_TRUE(
      stub_->CreateEngine(&context, FakeCluster::CreateRequest("a", {0, 1}), &operation).ok());
  grpc::ClientContext watching;
  v1::GetOperationRequest request;
  request.set_id(operation.id());
  auto reader = stub_->WatchOperation(&watching, request);
  int64_t version = 0;
  v1::Operation change;
  while (reader->Read(&change)) {
    EXPECT_GT(change.version(), version);
    version = change.version();
    if (change.phase() == "form" && !release.HasBeenNotified()) release.Notify();
  }
  EXPECT_TRUE(reader->Finish().ok());
  EXPECT_TRUE(change.done());
  EXPECT_EQ(change.error(), "");
}

TEST_F(ServiceTest, WatchOperation_ClientGoesAway_EndsTheStream) {
  absl::Notification release;
  cluster_.SetScript([&](FakeWorker& worker, const v1::Command& command) {
    if (command.has_form_engine()) release.WaitForNotification();
    return absl::OkStatus();
  });
  const auto accepted = cluster_.control().CreateEngine(FakeCluster::CreateRequest("a", {0}));
  ASSERT_TRUE(cluster_.AwaitCount("0 FormEngine", 1));
  v1::GetOperationRequest request;
  request.set_id(accepted->id());
  for (int i = 0; i < 20; ++i) {
    grpc::ClientContext watching;
    auto reader = stub_->WatchOperation(&watching, request);
    v1::Operation change;
    EXPECT_TRUE(reader->Read(&change));
    watching.TryCancel();
    EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::CANCELLED);
  }
  release.Notify();
  EXPECT_EQ(cluster_.Finish(accepted).error(), "");
  request.set_id("op-77");
  grpc::ClientContext unknown;
  v1::Operation change;
  auto reader = stub_->WatchOperation(&unknown, request);
  EXPECT_FALSE(reader->Read(&change));
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::NOT_FOUND);
}

TEST_F(ServiceTest, Train_StreamsRecordsThenTheOutcome) {
  cluster_.MustCreate("a", {0, 1});
  grpc::ClientContext context;
  auto reader = stub_->Train(&context, cluster_.TrainRequest("a", 500));
  v1::TrainRecord record;
  int64_t step = 0;
  while (reader->Read(&record)) EXPECT_EQ(record.step(), ++step);
  EXPECT_TRUE(reader->Finish().ok());
  EXPECT_EQ(step, 500);
}

TEST_F(ServiceTest, Train_InQueue_TellsItsOperationAlready) {
  cluster_.MustCreate("a", {0});
  absl::Notification release;
  cluster_.SetScript([&](FakeWorker& worker, const v1::Command& command) {
    if (command.has_check_training()) release.WaitForNotification();
    return absl::OkStatus();
  });
  grpc::ClientContext context;
  auto reader = stub_->Train(&context, cluster_.TrainRequest("a", 2));
  reader->WaitForInitialMetadata();
  const std::string id = OperationOf(context);
  ASSERT_NE(id, "");
  EXPECT_EQ(cluster_.control().operations().Get(id)->kind(), "train");
  release.Notify();
  v1::TrainRecord record;
  ASSERT_TRUE(reader->Read(&record));
  EXPECT_EQ(record.operation(), id);
  while (reader->Read(&record)) {
  }
  EXPECT_TRUE(reader->Finish().ok());
}

// The writer's last steps are on two threads; a sanitizer sees who touches what is gone.
TEST_F(ServiceTest, Train_ManyShortOnes_AllEndOnce) {
  cluster_.MustCreate("a", {0});
  for (int i = 0; i < 200; ++i) {
    grpc::ClientContext context;
    auto reader = stub_->Train(&context, cluster_.TrainRequest("a", 1));
    v1::TrainRecord record;
    EXPECT_TRUE(reader->Read(&record));
    EXPECT_FALSE(reader->Read(&record));
    EXPECT_TRUE(reader->Finish().ok());
  }
}

TEST_F(ServiceTest, Train_ClientGoesAway_TheEngineIsIdleSoon) {
  cluster_.MustCreate("a", {0, 1});
  {
    grpc::ClientContext context;
    auto reader = stub_->Train(&context, cluster_.TrainRequest("a", 1000000000));
    v1::TrainRecord record;
    ASSERT_TRUE(reader->Read(&record));
    context.TryCancel();
    EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::CANCELLED);
  }
  const absl::Time deadline = absl::Now() + kPatience;
  while (!cluster_.Describe("a").activity().empty() && absl::Now() < deadline)
    std::this_thread::yield();
  EXPECT_EQ(cluster_.Describe("a").activity(), "");
  EXPECT_EQ(cluster_.Describe("a").state(), v1::ENGINE_STATE_READY);
}

// A connection whose window stays small, so that a reader that does not read is soon full.
std::unique_ptr<v1::Control::Stub> StubOfASlowReader(const std::string& address) {
  grpc::ChannelArguments args;
  args.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);  // or the connection's window grows and grows
  return v1::Control::NewStub(
      grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), args));
}

TEST_F(ServiceTest, Train_ReaderIsSlow_StepsGoOnAndWhatItMissedIsTold) {
  constexpr int64_t kSteps = 10000;  // more than the queue and the connection's window hold
  cluster_.MustCreate("a", {0});
  const auto stub = StubOfASlowReader(server_->address());
  grpc::ClientContext context;
  auto reader = stub->Train(&context, cluster_.TrainRequest("a", kSteps));
  ASSERT_TRUE(AwaitStep("a", kSteps));
  v1::TrainRecord record;
  int64_t step = 0;
  int64_t records = 0;
  int64_t dropped = 0;
  while (reader->Read(&record)) {
    ++records;
    dropped += record.dropped();
    EXPECT_EQ(record.step(), step + record.dropped() + 1);
    step = record.step();
  }
  EXPECT_TRUE(reader->Finish().ok());
  EXPECT_EQ(step, kSteps);
  EXPECT_EQ(records + dropped, kSteps);
  EXPECT_GE(records, static_cast<int64_t>(StreamWriter<v1::TrainRecord>::kMostQueued));
  EXPECT_GT(dropped, 0);
}

TEST_F(ServiceTest, Train_ReaderIsSlow_ADeleteStillWorks) {
  cluster_.MustCreate("a", {0});
  const auto stub = StubOfASlowReader(server_->address());
  grpc::ClientContext context;
  auto reader = stub->Train(&context, cluster_.TrainRequest("a", 1000000000));
  ASSERT_TRUE(AwaitStep("a", 5000));
  v1::DeleteEngineRequest request;
  request.set_request_id(FakeCluster::NewRequestId());
  request.set_name("a");
  EXPECT_EQ(cluster_.Finish(cluster_.control().DeleteEngine(request)).error(), "");
  v1::TrainRecord record;
  while (reader->Read(&record)) {
  }
  EXPECT_THAT(FromGrpc(reader->Finish()).message(), HasSubstr("is being deleted"));
}

TEST_F(ServiceTest, WatchOperation_ReaderIsSlow_IsToldHowManyStatesItMissed) {
  constexpr int64_t kSteps = 10000;  // each a change or more
  cluster_.MustCreate("a", {0});
  absl::Notification release;
  cluster_.SetScript([&](FakeWorker& worker, const v1::Command& command) {
    if (command.has_check_training()) release.WaitForNotification();
    return absl::OkStatus();
  });
  grpc::ClientContext context;
  auto training = stub_->Train(&context, cluster_.TrainRequest("a", kSteps));
  v1::GetOperationRequest request;
  training->WaitForInitialMetadata();
  request.set_id(OperationOf(context));
  const auto stub = StubOfASlowReader(server_->address());
  grpc::ClientContext watching;
  auto reader = stub->WatchOperation(&watching, request);
  v1::Operation state;
  ASSERT_TRUE(reader->Read(&state));
  EXPECT_EQ(state.dropped(), 0);
  release.Notify();
  v1::TrainRecord record;
  while (training->Read(&record)) {
  }
  EXPECT_TRUE(training->Finish().ok());
  int64_t version = state.version();
  int64_t dropped = 0;
  while (reader->Read(&state)) {
    EXPECT_EQ(state.version(), version + state.dropped() + 1);
    version = state.version();
    dropped += state.dropped();
  }
  EXPECT_TRUE(reader->Finish().ok());
  EXPECT_TRUE(state.done());
  EXPECT_GT(dropped, 0);
}

TEST_F(ServiceTest, Lists_AnswerWhileWorkersHang) {
  absl::Notification release;
  cluster_.SetScript([&](FakeWorker& worker, const v1::Command& command) {
    if (command.has_form_engine()) release.WaitForNotification();
    return absl::OkStatus();
  });
  // More mutations at a time than there are threads for callbacks.
  struct Call {
    grpc::ClientContext context;
    v1::CreateEngineRequest request;
    v1::Operation operation;
    grpc::Status status;
    absl::Notification done;
  };
  std::vector<std::unique_ptr<Call>> calls;
  calls.reserve(64);
  for (int i = 0; i < 64; ++i) {
    calls.push_back(std::make_unique<Call>());
    Call& call = *calls.back();
    SetDeadline(call.context);
    call.request = FakeCluster::CreateRequest(absl::StrCat("e", i), {i % 2});
    stub_->async()->CreateEngine(&call.context, &call.request, &call.operation,
                                 [&call](grpc::Status status) {
                                   call.status = std::move(status);
                                   call.done.Notify();
                                 });
  }
  for (const auto& call : calls) {
    ASSERT_TRUE(call->done.WaitForNotificationWithTimeout(kPatience));
    ASSERT_TRUE(call->status.ok()) << call->status.error_message();
  }
  ASSERT_TRUE(cluster_.AwaitCount("0 FormEngine", 1));
  for (int i = 0; i < 50; ++i) {
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(absl::Now() + absl::Seconds(5)));
    v1::GetStatusResponse response;
    ASSERT_TRUE(stub_->GetStatus(&context, v1::GetStatusRequest(), &response).ok());
    EXPECT_THAT(response.engines(), SizeIs(64));
    EXPECT_EQ(response.nodes(0).address(), server_->address());
  }
  release.Notify();
  for (const auto& call : calls) EXPECT_EQ(cluster_.Finish(call->operation).error(), "");
}

TEST_F(ServiceTest, NotAvailable_SaysSo) {
  grpc::ClientContext saving;
  SetDeadline(saving);
  v1::Operation operation;
  EXPECT_EQ(stub_->SaveCheckpoint(&saving, v1::CheckpointRequest(), &operation).error_code(),
            grpc::StatusCode::UNIMPLEMENTED);
}

TEST_F(ServiceTest, Start_TakenPort_IsNamed) {
  const absl::Status status =
      ControlServer::Start("127.0.0.1", server_->port(), &cluster_.control()).status();
  EXPECT_THAT(status.message(), HasSubstr(server_->address()));
  EXPECT_THAT(status.message(), HasSubstr("in use"));
}

TEST_F(ServiceTest, Start_TakenPortOfAName_IsAnError) {
  const auto first = ControlServer::Start("localhost", 0, &cluster_.control());
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_EQ((*first)->address(), absl::StrCat("localhost:", (*first)->port()));
  EXPECT_THAT(
      ControlServer::Start("localhost", (*first)->port(), &cluster_.control()).status().message(),
      HasSubstr("in use"));
  EXPECT_THAT(ControlServer::Start("nosuch.invalid", 0, &cluster_.control()).status().message(),
              HasSubstr("--listen=nosuch.invalid:0"));
}

TEST_F(ServiceTest, Start_IPv6_HasBrackets) {
  const auto server = ControlServer::Start("::1", 0, &cluster_.control());
  if (!server.ok()) GTEST_SKIP() << "no IPv6 here: " << server.status();
  EXPECT_EQ((*server)->address(), absl::StrCat("[::1]:", (*server)->port()));
  auto stub = v1::Control::NewStub(
      grpc::CreateChannel((*server)->address(), grpc::InsecureChannelCredentials()));
  grpc::ClientContext context;
  SetDeadline(context);
  v1::GetStatusResponse response;
  EXPECT_TRUE(stub->GetStatus(&context, v1::GetStatusRequest(), &response).ok());
}

}  // namespace
}  // namespace regroup
