// The client library: unary calls, and the waiting for operations.
#include "client/client.h"

#include <atomic>
#include <set>
#include <string>
#include <vector>

#include "client/client_test_util.h"
#include "gtest/gtest.h"
#include "proto/rpc_status.h"

namespace regroup {
namespace {

TEST(Client, CheckTarget_HostAndPort) {
  for (const char* target : {"127.0.0.1:7070", "localhost:1", "[::1]:65535", "node-1.example:80"}) {
    EXPECT_TRUE(CheckTarget(target).ok()) << target;
  }
  for (const char* target : {"", ":1", "h", "h:", "h:0", "h:65536", "h:x", "h:1 ", "a b:1",
                             "unix:/x", "http://h:1", "::1:80", "h:+1", "h:000001"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(CheckTarget(target))) << target;
    EXPECT_FALSE(Client::Connect(target).ok()) << target;
  }
}

TEST(Client, RequestIds_Are128RandomBits) {
  std::set<std::string> ids;
  for (int i = 0; i < 100; ++i) ids.insert(NewRequestId());
  EXPECT_EQ(ids.size(), 100);
  for (const std::string& id : ids) {
    EXPECT_EQ(id.size(), 32);
    EXPECT_EQ(id.find_first_not_of("0123456789abcdef"), std::string::npos);
  }
}

TEST(Client, Mutation_SendsARequestIdAndADeadline) {
  FakeControl server;
  std::vector<std::string> ids;
  server.create_engine = [&](grpc::ServerContext* context, const v1::CreateEngineRequest& request,
                             v1::Operation* operation) {
    EXPECT_LT(context->deadline(), absl::ToChronoTime(absl::Now() + absl::Hours(1)));
    ids.push_back(request.request_id());
    *operation = Running("op-1");
    return grpc::Status::OK;
  };
  const auto client = Connect(server);
  const auto operation = client->CreateEngine(v1::CreateEngineRequest());
  ASSERT_TRUE(operation.ok()) << operation.status();
  EXPECT_EQ(operation->id(), "op-1");
  v1::CreateEngineRequest mine;
  mine.set_request_id("mine");
  ASSERT_TRUE(client->CreateEngine(mine).ok());
  ASSERT_EQ(ids.size(), 2);
  EXPECT_EQ(ids[0].size(), 32);
  EXPECT_EQ(ids[1], "mine");
}

TEST(Client, Unreachable_IsAskedAgainWithTheSameRequestId) {
  FakeControl server;
  std::vector<std::string> ids;
  server.delete_engine = [&](grpc::ServerContext*, const v1::DeleteEngineRequest& request,
                             v1::Operation* operation) {
    ids.push_back(request.request_id());
    if (ids.size() == 1) return kGone;
    *operation = Running("op-1");
    return grpc::Status::OK;
  };
  EXPECT_TRUE(Connect(server)->DeleteEngine(v1::DeleteEngineRequest()).ok());
  ASSERT_EQ(ids.size(), 2);
  EXPECT_EQ(ids[0], ids[1]);
}

TEST(Client, Unreachable_IsAskedABoundedNumberOfTimes) {
  FakeControl server;
  server.get_status = [](grpc::ServerContext*, const v1::GetStatusRequest&,
                         v1::GetStatusResponse*) { return kGone; };
  FakeClock clock;
  ClientOptions options = On(&clock);
  options.max_attempts = 6;
  EXPECT_TRUE(absl::IsUnavailable(Connect(server, options)->GetStatus().status()));
  EXPECT_EQ(server.CountCalls("GetStatus"), 6);
  const std::vector<absl::Duration> pauses = clock.pauses();
  ASSERT_EQ(pauses.size(), 5);
  ExpectPause(pauses[0], options.first_backoff);
  ExpectPause(pauses[1], 2 * options.first_backoff);
  ExpectPause(pauses[2], 4 * options.first_backoff);
  ExpectPause(pauses[3], 8 * options.first_backoff);
  ExpectPause(pauses[4], options.longest_backoff);
}

TEST(Client, Unreachable_IsAskedAgainWithinTheTimeout) {
  FakeControl server;
  server.get_status = [](grpc::ServerContext*, const v1::GetStatusRequest&,
                         v1::GetStatusResponse*) { return kGone; };
  FakeClock clock;
  ClientOptions options = On(&clock);
  options.max_attempts = 1000000;
  CallOptions call;
  call.timeout = absl::Seconds(10);
  EXPECT_TRUE(absl::IsUnavailable(Connect(server, options)->GetStatus(call).status()));
  EXPECT_LT(clock.Now(), absl::UnixEpoch() + absl::Seconds(10));
  EXPECT_GT(clock.Now(), absl::UnixEpoch() + absl::Seconds(10) - options.longest_backoff);
}

// Between two attempts nobody but the client itself sees to the connection.
TEST(Client, Unreachable_ServerStartsMeanwhile_IsReached) {
  class StartingClock final : public ClientClock {
   public:
    explicit StartingClock(int port) : port_(port) {}
    absl::Time Now() override { return absl::UnixEpoch(); }
    bool Wait(absl::Duration, const absl::Notification*) override {
      if (server_ != nullptr) return true;
      server_ = std::make_unique<FakeControl>(port_);
      server_->get_status = [](grpc::ServerContext*, const v1::GetStatusRequest&,
                               v1::GetStatusResponse*) { return grpc::Status::OK; };
      return true;
    }

   private:
    const int port_;
    std::unique_ptr<FakeControl> server_;
  };
  const int port = FakeControl().port();  // free again
  StartingClock clock(port);
  ClientOptions options;
  options.clock = &clock;
  const auto client = *Client::Connect(absl::StrCat("127.0.0.1:", port), options);
  const absl::Status status = client->GetStatus().status();
  EXPECT_TRUE(status.ok()) << status;
}

TEST(Client, Unreachable_CancelledWhileItPauses_EndsCancelled) {
  FakeControl server;
  absl::Notification cancel;
  server.get_status = [&](grpc::ServerContext*, const v1::GetStatusRequest&,
                          v1::GetStatusResponse*) {
    cancel.Notify();
    return kGone;
  };
  ClientOptions options;
  options.first_backoff = options.longest_backoff = 2 * kTestDeadline;
  options.call_timeout = 4 * kTestDeadline;
  const absl::Status status = Connect(server, options)->GetStatus({&cancel, {}}).status();
  EXPECT_TRUE(absl::IsCancelled(status)) << status;
  EXPECT_EQ(server.CountCalls("GetStatus"), 1);
}

TEST(Client, ErrorWithDetail_IsReturnedAsItIs) {
  FakeControl server;
  server.trace_engine = [](grpc::ServerContext*, const v1::TraceEngineRequest&, v1::EngineTrace*) {
    v1::ErrorDetail detail;
    detail.set_reason(v1::ERROR_REASON_RANK_LOST);
    detail.add_ranks(2);
    return ToGrpc(MakeError(absl::StatusCode::kUnavailable, "rank 2 is lost", detail));
  };
  const absl::Status status = Connect(server)->TraceEngine(v1::TraceEngineRequest()).status();
  EXPECT_EQ(status.message(), "rank 2 is lost");
  ASSERT_TRUE(DetailOf(status).has_value());
  EXPECT_EQ(DetailOf(status)->ranks(0), 2);
  EXPECT_EQ(server.CountCalls("TraceEngine"), 1);
}

TEST(Client, SilentServer_UnaryCallEndsAtItsDeadline) {
  FakeControl server;
  server.get_status = [](grpc::ServerContext* context, const v1::GetStatusRequest&,
                         v1::GetStatusResponse*) {
    EXPECT_TRUE(FakeControl::WaitUntilCancelled(context));
    return grpc::Status::CANCELLED;
  };
  ClientOptions options;
  options.call_timeout = absl::Milliseconds(100);
  EXPECT_TRUE(absl::IsDeadlineExceeded(Connect(server, options)->GetStatus().status()));
}

TEST(Client, LargeMessage_Arrives) {
  FakeControl server;
  server.describe_engine = [](grpc::ServerContext*, const v1::DescribeEngineRequest& request,
                              v1::Engine* engine) {
    engine->set_name(request.name());
    engine->set_error(std::string(20 << 20, 'x'));
    return grpc::Status::OK;
  };
  const auto engine = Connect(server)->DescribeEngine("actor");
  ASSERT_TRUE(engine.ok()) << engine.status();
  EXPECT_EQ(engine->error().size(), 20 << 20);
}

TEST(Client, Wait_StreamsProgressToTheEnd) {
  FakeControl server;
  server.watch_operation = [](grpc::ServerContext*, const v1::GetOperationRequest& request,
                              grpc::ServerWriter<v1::Operation>* writer) {
    writer->Write(Running(request.id(), 10));
    writer->Write(Running(request.id(), 50));
    writer->Write(Done(request.id()));
    return grpc::Status::OK;
  };
  std::vector<int64_t> bytes;
  const auto ended = Connect(server)->Wait(
      Running("op-1"), [&](const v1::Operation& latest) { bytes.push_back(latest.bytes_moved()); });
  ASSERT_TRUE(ended.ok()) << ended.status();
  EXPECT_TRUE(ended->done());
  EXPECT_EQ(bytes, (std::vector<int64_t>{10, 50, 100}));
}

TEST(Client, Wait_OperationThatIsDone_AsksNobody) {
  FakeControl server;
  EXPECT_TRUE(Connect(server)->Wait(Done("op-1"))->done());
  EXPECT_TRUE(server.calls().empty());
}

TEST(Client, Wait_BrokenStream_AsksForTheOperationAndWatchesAgain) {
  FakeControl server;
  std::atomic<int> watches{0};
  server.watch_operation = [&](grpc::ServerContext*, const v1::GetOperationRequest& request,
                               grpc::ServerWriter<v1::Operation>* writer) {
    if (++watches == 1) {
      writer->Write(Running(request.id(), 10));
      return kGone;
    }
    writer->Write(Done(request.id()));
    return grpc::Status::OK;
  };
  server.get_operation = [](grpc::ServerContext*, const v1::GetOperationRequest& request,
                            v1::Operation* operation) {
    *operation = Running(request.id(), 20);
    return grpc::Status::OK;
  };
  std::vector<int64_t> bytes;
  const auto ended = Connect(server)->Wait(
      Running("op-1"), [&](const v1::Operation& latest) { bytes.push_back(latest.bytes_moved()); });
  ASSERT_TRUE(ended.ok()) << ended.status();
  EXPECT_EQ(bytes, (std::vector<int64_t>{10, 20, 100}));
}

TEST(Client, Wait_BrokenStream_OperationEndedMeanwhile) {
  FakeControl server;
  server.watch_operation = [](grpc::ServerContext*, const v1::GetOperationRequest&,
                              grpc::ServerWriter<v1::Operation>*) { return kGone; };
  server.get_operation = [](grpc::ServerContext*, const v1::GetOperationRequest& request,
                            v1::Operation* operation) {
    *operation = Done(request.id());
    return grpc::Status::OK;
  };
  EXPECT_TRUE(Connect(server)->Wait(Running("op-1"))->done());
}

TEST(Client, Wait_ServerGone_EndsUnavailable) {
  FakeControl server;
  FakeClock clock;
  const auto client = Connect(server, On(&clock));
  server.Stop();
  const absl::Status status = client->Wait(Running("op-1")).status();
  EXPECT_GE(clock.Now(), absl::UnixEpoch() + ClientOptions().lost_timeout);
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_NE(status.message().find("op-1"), std::string::npos);
  EXPECT_FALSE(DetailOf(status).has_value());
}

TEST(Client, Wait_LongWatchThatBreaks_IsNotYetLost) {
  FakeClock clock;
  ClientOptions options = On(&clock);
  options.max_attempts = 1;
  FakeControl server;
  std::atomic<int> watches{0};
  server.watch_operation = [&](grpc::ServerContext*, const v1::GetOperationRequest& request,
                               grpc::ServerWriter<v1::Operation>* writer) {
    if (++watches == 1) {
      writer->Write(Running(request.id(), 10));
      clock.Advance(options.lost_timeout);  // the server is well, the operation is just long
      return kGone;
    }
    writer->Write(Done(request.id()));
    return grpc::Status::OK;
  };
  server.get_operation = [](grpc::ServerContext*, const v1::GetOperationRequest&, v1::Operation*) {
    return kGone;
  };
  const auto ended = Connect(server, options)->Wait(Running("op-1"));
  ASSERT_TRUE(ended.ok()) << ended.status();
  EXPECT_TRUE(ended->done());
  EXPECT_EQ(server.CountCalls("GetOperation"), 1);
}

TEST(Client, Wait_Cancelled_EndsAQuestionThatIsNotAnswered) {
  ClientOptions options;
  options.call_timeout = 2 * kTestDeadline;  // so that only the cancellation ends it in time
  FakeControl server;
  absl::Notification cancel;
  server.watch_operation = [](grpc::ServerContext*, const v1::GetOperationRequest&,
                              grpc::ServerWriter<v1::Operation>*) { return kGone; };
  server.get_operation = [&](grpc::ServerContext* context, const v1::GetOperationRequest&,
                             v1::Operation*) {
    cancel.Notify();
    EXPECT_TRUE(FakeControl::WaitUntilCancelled(context));
    return grpc::Status::CANCELLED;
  };
  const absl::Status status =
      Connect(server, options)->Wait(Running("op-1"), nullptr, {&cancel, {}}).status();
  EXPECT_TRUE(absl::IsCancelled(status)) << status;
}

TEST(Client, Wait_TimeoutPasses_IsDeadlineExceededAndLeavesTheOperation) {
  FakeControl server;
  FakeClock clock;
  server.watch_operation = [&](grpc::ServerContext*, const v1::GetOperationRequest& request,
                               grpc::ServerWriter<v1::Operation>* writer) {
    writer->Write(Running(request.id(), 10));
    clock.Advance(absl::Seconds(11));
    return grpc::Status::OK;
  };
  server.get_operation = [](grpc::ServerContext*, const v1::GetOperationRequest& request,
                            v1::Operation* operation) {
    *operation = Running(request.id(), 20);
    return grpc::Status::OK;
  };
  CallOptions call;
  call.timeout = absl::Seconds(30);
  const absl::Status status =
      Connect(server, On(&clock))->Wait(Running("op-1"), nullptr, call).status();
  EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
  EXPECT_EQ(status.message(), "operation op-1: has not ended after 30s");
  EXPECT_EQ(server.CountCalls("WatchOperation"), 3);
  EXPECT_EQ(server.CountCalls("CancelOperation"), 0);
}

TEST(Client, Wait_UnknownOperation_IsNotFound) {
  FakeControl server;
  server.watch_operation = [](grpc::ServerContext*, const v1::GetOperationRequest&,
                              grpc::ServerWriter<v1::Operation>*) {
    return ToGrpc(MakeError(absl::StatusCode::kNotFound, "no such operation",
                            v1::ERROR_REASON_INVALID_FIELD));
  };
  const absl::Status status = Connect(server)->Wait(Running("op-1")).status();
  EXPECT_TRUE(absl::IsNotFound(status));
  EXPECT_TRUE(DetailOf(status).has_value());
}

TEST(Client, Wait_Cancelled_LeavesTheOperationAlone) {
  FakeControl server;
  absl::Notification cancel;
  server.watch_operation = [&](grpc::ServerContext* context, const v1::GetOperationRequest&,
                               grpc::ServerWriter<v1::Operation>*) {
    cancel.Notify();
    EXPECT_TRUE(FakeControl::WaitUntilCancelled(context));
    return grpc::Status::CANCELLED;
  };
  EXPECT_TRUE(
      absl::IsCancelled(Connect(server)->Wait(Running("op-1"), nullptr, {&cancel, {}}).status()));
  EXPECT_EQ(server.CountCalls("CancelOperation"), 0);
}

// The step that runs is still applied: its record is not lost.

TEST(Client, Finish_ReturnsWhatItWasRefusedOrFailedWith) {
  FakeControl server;
  server.watch_operation = [](grpc::ServerContext*, const v1::GetOperationRequest& request,
                              grpc::ServerWriter<v1::Operation>* writer) {
    v1::Operation operation = Done(request.id());
    if (request.id() == "op-2") {
      operation.set_error("rank 2 is lost");
      operation.set_error_code(static_cast<int>(absl::StatusCode::kUnavailable));
    }
    writer->Write(operation);
    return grpc::Status::OK;
  };
  const auto client = Connect(server);
  EXPECT_EQ(client->Finish(absl::NotFoundError("no engine")).status().message(), "no engine");
  EXPECT_EQ(server.CountCalls("WatchOperation"), 0);
  EXPECT_EQ(client->Finish(Running("op-1"))->bytes_moved(), 100);
  const absl::Status failed = client->Finish(Running("op-2")).status();
  EXPECT_EQ(failed.message(), "rank 2 is lost");
  EXPECT_TRUE(DetailOf(failed).has_value());
}

TEST(Client, OutcomeOf_CarriesCodeAndDetail) {
  v1::Operation operation = Running("op-1");
  operation.set_engine("actor");
  operation.set_phase("agree");
  EXPECT_TRUE(OutcomeOf(operation).ok());
  operation.set_done(true);
  EXPECT_TRUE(OutcomeOf(operation).ok());
  operation.set_error("rank 2 is lost");
  operation.set_error_code(static_cast<int>(absl::StatusCode::kUnavailable));
  const absl::Status outcome = OutcomeOf(operation);
  EXPECT_TRUE(absl::IsUnavailable(outcome));
  EXPECT_EQ(outcome.message(), "rank 2 is lost");
  ASSERT_TRUE(DetailOf(outcome).has_value());
  EXPECT_EQ(DetailOf(outcome)->engine(), "actor");
  EXPECT_EQ(DetailOf(outcome)->phase(), "agree");
  operation.set_error_code(0);
  EXPECT_FALSE(OutcomeOf(operation).ok());
}

}  // namespace
}  // namespace regroup
