#include "client/client.h"

#include <atomic>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "client/fake_control.h"
#include "gtest/gtest.h"
#include "proto/rpc_status.h"

namespace regroup {
namespace {

const grpc::Status kGone(grpc::StatusCode::UNAVAILABLE, "connection reset");

ClientOptions Quick() {
  ClientOptions options;
  options.probe_after = absl::Milliseconds(50);
  options.lost_timeout = absl::Milliseconds(200);
  return options;
}

std::unique_ptr<Client> Connect(const FakeControl& server, const ClientOptions& options = {}) {
  return *Client::Connect(server.target(), options);
}

v1::Operation Running(const std::string& id, int64_t bytes = 0) {
  v1::Operation operation;
  operation.set_id(id);
  operation.set_bytes_moved(bytes);
  return operation;
}

v1::Operation Done(const std::string& id) {
  v1::Operation operation = Running(id, 100);
  operation.set_done(true);
  return operation;
}

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
  EXPECT_TRUE(absl::IsUnavailable(Connect(server)->GetStatus().status()));
  EXPECT_EQ(server.CountCalls("GetStatus"), 3);
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
  const auto client = Connect(server, Quick());
  server.Stop();
  const absl::Status status = client->Wait(Running("op-1")).status();
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_NE(status.message().find("op-1"), std::string::npos);
  EXPECT_FALSE(DetailOf(status).has_value());
}

TEST(Client, Wait_LongWatchThatBreaks_IsNotYetLost) {
  ClientOptions options;
  options.max_attempts = 1;
  options.lost_timeout = absl::Seconds(2);
  FakeControl server;
  std::atomic<int> watches{0};
  server.watch_operation = [&](grpc::ServerContext*, const v1::GetOperationRequest& request,
                               grpc::ServerWriter<v1::Operation>* writer) {
    if (++watches == 1) {
      writer->Write(Running(request.id(), 10));
      absl::SleepFor(options.lost_timeout);  // the server is well, the operation is just long
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
      Connect(server, options)->Wait(Running("op-1"), nullptr, &cancel).status();
  EXPECT_TRUE(absl::IsCancelled(status)) << status;
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
  EXPECT_TRUE(absl::IsCancelled(Connect(server)->Wait(Running("op-1"), nullptr, &cancel).status()));
  EXPECT_EQ(server.CountCalls("CancelOperation"), 0);
}

TEST(Client, Train_StreamsRecords) {
  FakeControl server;
  server.train = [](grpc::ServerContext*, const v1::TrainRequest& request,
                    grpc::ServerWriter<v1::TrainRecord>* writer) {
    EXPECT_EQ(request.request_id().size(), 32);
    for (int64_t step = 1; step <= request.steps(); ++step) {
      v1::TrainRecord record;
      record.set_step(step);
      writer->Write(record);
    }
    return grpc::Status::OK;
  };
  v1::TrainRequest request;
  request.set_steps(3);
  std::vector<int64_t> steps;
  const absl::Status status = Connect(server)->Train(
      request, [&](const v1::TrainRecord& record) { steps.push_back(record.step()); });
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(steps, (std::vector<int64_t>{1, 2, 3}));
}

TEST(Client, Train_Cancelled_ReachesTheServer) {
  FakeControl server;
  std::atomic<bool> cancelled{false};
  server.train = [&](grpc::ServerContext* context, const v1::TrainRequest&,
                     grpc::ServerWriter<v1::TrainRecord>* writer) {
    writer->Write(v1::TrainRecord());
    cancelled = FakeControl::WaitUntilCancelled(context);
    return grpc::Status::CANCELLED;
  };
  absl::Notification cancel;
  const absl::Status status = Connect(server)->Train(
      v1::TrainRequest(), [&](const v1::TrainRecord&) { cancel.Notify(); }, &cancel);
  EXPECT_TRUE(absl::IsCancelled(status)) << status;
  server.Stop();
  EXPECT_TRUE(cancelled);
}

TEST(Client, Train_CancelledBeforeTheFirstRecord_KnowsItsOperation) {
  FakeControl server;
  absl::Notification said;
  server.get_status = [](grpc::ServerContext*, const v1::GetStatusRequest&,
                         v1::GetStatusResponse*) { return grpc::Status::OK; };
  server.train = [&](grpc::ServerContext* context, const v1::TrainRequest&,
                     grpc::ServerWriter<v1::TrainRecord>* writer) {
    context->AddInitialMetadata("regroup-operation", "op-2");
    writer->SendInitialMetadata();
    said.Notify();
    EXPECT_TRUE(FakeControl::WaitUntilCancelled(context));
    return grpc::Status::CANCELLED;
  };
  const auto client = Connect(server);
  absl::Notification cancel;
  std::thread canceller([&] {
    EXPECT_TRUE(said.WaitForNotificationWithTimeout(kTestDeadline));
    // An answer on the same connection: what was sent before it, has arrived.
    EXPECT_TRUE(client->GetStatus().ok());
    cancel.Notify();
  });
  std::string operation;
  const absl::Status status = client->Train(v1::TrainRequest(), nullptr, &cancel, &operation);
  canceller.join();
  EXPECT_TRUE(absl::IsCancelled(status)) << status;
  EXPECT_EQ(operation, "op-2");
}

TEST(Client, Train_OperationOfTheRecords_WithoutMetadata) {
  FakeControl server;
  server.train = [](grpc::ServerContext*, const v1::TrainRequest&,
                    grpc::ServerWriter<v1::TrainRecord>* writer) {
    v1::TrainRecord record;
    record.set_operation("op-3");
    writer->Write(record);
    return grpc::Status::OK;
  };
  std::string operation;
  EXPECT_TRUE(Connect(server)->Train(v1::TrainRequest(), nullptr, nullptr, &operation).ok());
  EXPECT_EQ(operation, "op-3");
}

TEST(Client, Train_Cancelled_EndsAProbeThatIsNotAnswered) {
  ClientOptions options = Quick();
  options.call_timeout = 2 * kTestDeadline;  // so that only the cancellation ends it in time
  FakeControl server;
  absl::Notification cancel;
  server.get_status = [&](grpc::ServerContext* context, const v1::GetStatusRequest&,
                          v1::GetStatusResponse*) {
    cancel.Notify();
    EXPECT_TRUE(FakeControl::WaitUntilCancelled(context));
    return grpc::Status::CANCELLED;
  };
  server.train = [](grpc::ServerContext* context, const v1::TrainRequest&,
                    grpc::ServerWriter<v1::TrainRecord>*) {
    EXPECT_TRUE(FakeControl::WaitUntilCancelled(context));
    return grpc::Status::CANCELLED;
  };
  const absl::Status status = Connect(server, options)->Train(v1::TrainRequest(), nullptr, &cancel);
  EXPECT_TRUE(absl::IsCancelled(status)) << status;
}

TEST(Client, Train_IsNeverSentTwice) {
  FakeControl server;
  server.train = [](grpc::ServerContext*, const v1::TrainRequest&,
                    grpc::ServerWriter<v1::TrainRecord>*) { return kGone; };
  EXPECT_TRUE(absl::IsUnavailable(Connect(server)->Train(v1::TrainRequest())));
  EXPECT_EQ(server.CountCalls("Train"), 1);
}

TEST(Client, Train_SlowStep_OfAServerThatAnswers_GoesOn) {
  FakeControl server;
  server.get_status = [](grpc::ServerContext*, const v1::GetStatusRequest&,
                         v1::GetStatusResponse*) { return grpc::Status::OK; };
  server.train = [&](grpc::ServerContext*, const v1::TrainRequest&,
                     grpc::ServerWriter<v1::TrainRecord>* writer) {
    EXPECT_TRUE(server.WaitForCalls("GetStatus", 2));
    writer->Write(v1::TrainRecord());
    return grpc::Status::OK;
  };
  int records = 0;
  const absl::Status status =
      Connect(server, Quick())->Train(v1::TrainRequest(), [&](const v1::TrainRecord&) {
        ++records;
      });
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(records, 1);
}

TEST(Client, Train_ServerThatAnswersNothing_IsGivenUp) {
  FakeControl server;
  server.get_status = [](grpc::ServerContext* context, const v1::GetStatusRequest&,
                         v1::GetStatusResponse*) {
    FakeControl::WaitUntilCancelled(context);
    return grpc::Status::CANCELLED;
  };
  server.train = [](grpc::ServerContext* context, const v1::TrainRequest&,
                    grpc::ServerWriter<v1::TrainRecord>*) {
    FakeControl::WaitUntilCancelled(context);
    return grpc::Status::CANCELLED;
  };
  ClientOptions options = Quick();
  options.call_timeout = absl::Milliseconds(100);
  const absl::Status status = Connect(server, options)->Train(v1::TrainRequest());
  EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
}

TEST(Client, Generate_ReturnsTheOutputs) {
  FakeControl server;
  server.generate = [](grpc::ServerContext*, const v1::GenerateRequest& request,
                       grpc::ServerWriter<v1::GenerateResponse>* writer) {
    v1::GenerateResponse response;
    response.set_tokens_done(1);
    writer->Write(response);
    response.set_done(true);
    for (const v1::Prompt& prompt : request.prompts()) {
      response.add_outputs()->add_tokens(prompt.tokens(0) + 1);
    }
    writer->Write(response);
    return grpc::Status::OK;
  };
  v1::GenerateRequest request;
  request.add_prompts()->add_tokens(41);
  int progress = 0;
  const auto response = Connect(server)->Generate(request, [&](const v1::GenerateResponse& r) {
    progress += static_cast<int>(r.tokens_done());
  });
  ASSERT_TRUE(response.ok()) << response.status();
  EXPECT_EQ(response->outputs(0).tokens(0), 42);
  EXPECT_EQ(progress, 1);
}

TEST(Client, Generate_CancelledAfterItsOutputs_ReturnsThem) {
  FakeControl server;
  server.generate = [](grpc::ServerContext*, const v1::GenerateRequest&,
                       grpc::ServerWriter<v1::GenerateResponse>* writer) {
    v1::GenerateResponse response;
    response.set_done(true);
    response.add_outputs()->set_finish_reason(v1::FINISH_REASON_CANCELLED);
    writer->Write(response);
    return grpc::Status::CANCELLED;
  };
  const auto response = Connect(server)->Generate(v1::GenerateRequest());
  ASSERT_TRUE(response.ok()) << response.status();
  EXPECT_EQ(response->outputs(0).finish_reason(), v1::FINISH_REASON_CANCELLED);
}

TEST(Client, Generate_StreamWithoutOutputs_IsAnError) {
  FakeControl server;
  server.generate = [](grpc::ServerContext*, const v1::GenerateRequest&,
                       grpc::ServerWriter<v1::GenerateResponse>*) { return grpc::Status::OK; };
  EXPECT_TRUE(absl::IsInternal(Connect(server)->Generate(v1::GenerateRequest()).status()));
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
