// The client library: Train and Generate.
#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "client/client.h"
#include "client/client_test_util.h"
#include "gtest/gtest.h"
#include "proto/rpc_status.h"

namespace regroup {
namespace {

TEST(ClientStream, Train_StreamsRecords) {
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

TEST(ClientStream, Train_Cancelled_ReachesTheServer) {
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
      v1::TrainRequest(), [&](const v1::TrainRecord&) { cancel.Notify(); }, {&cancel, {}});
  EXPECT_TRUE(absl::IsCancelled(status)) << status;
  server.Stop();
  EXPECT_TRUE(cancelled);
}

TEST(ClientStream, Train_Cancelled_SeesTheStepThatStillRan) {
  FakeControl server;
  absl::Notification asked;
  server.cancel_operation = [&](grpc::ServerContext*, const v1::CancelOperationRequest& request,
                                v1::Operation* operation) {
    EXPECT_EQ(request.id(), "op-2");
    EXPECT_EQ(request.request_id().size(), 32);
    *operation = Running(request.id());
    asked.Notify();
    return grpc::Status::OK;
  };
  server.train = [&](grpc::ServerContext* context, const v1::TrainRequest&,
                     grpc::ServerWriter<v1::TrainRecord>* writer) {
    context->AddInitialMetadata("regroup-operation", "op-2");
    v1::TrainRecord record;
    record.set_step(1);
    writer->Write(record);
    EXPECT_TRUE(asked.WaitForNotificationWithTimeout(kTestDeadline));
    record.set_step(2);
    writer->Write(record);
    EXPECT_FALSE(context->IsCancelled());
    return grpc::Status(grpc::StatusCode::CANCELLED, "operation op-2 was cancelled");
  };
  absl::Notification cancel;
  std::vector<int64_t> steps;
  const absl::Status status = Connect(server)->Train(v1::TrainRequest(),
                                                     [&](const v1::TrainRecord& record) {
                                                       steps.push_back(record.step());
                                                       if (record.step() == 1) cancel.Notify();
                                                     },
                                                     {&cancel, {}});
  EXPECT_TRUE(absl::IsCancelled(status)) << status;
  EXPECT_EQ(steps, (std::vector<int64_t>{1, 2}));
}

TEST(ClientStream, Train_CancelledBeforeTheFirstRecord_KnowsItsOperation) {
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
  const absl::Status status = client->Train(v1::TrainRequest(), nullptr, {&cancel, {}}, &operation);
  canceller.join();
  EXPECT_TRUE(absl::IsCancelled(status)) << status;
  EXPECT_EQ(operation, "op-2");
}

TEST(ClientStream, Train_OperationOfTheRecords_WithoutMetadata) {
  FakeControl server;
  server.train = [](grpc::ServerContext*, const v1::TrainRequest&,
                    grpc::ServerWriter<v1::TrainRecord>* writer) {
    v1::TrainRecord record;
    record.set_operation("op-3");
    writer->Write(record);
    return grpc::Status::OK;
  };
  std::string operation;
  EXPECT_TRUE(Connect(server)->Train(v1::TrainRequest(), nullptr, {}, &operation).ok());
  EXPECT_EQ(operation, "op-3");
}

TEST(ClientStream, Train_Cancelled_EndsAProbeThatIsNotAnswered) {
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
  const absl::Status status =
      Connect(server, options)->Train(v1::TrainRequest(), nullptr, {&cancel, {}});
  EXPECT_TRUE(absl::IsCancelled(status)) << status;
}

TEST(ClientStream, Train_Cancelled_ServerThatDoesNotAnswerIsNotWaitedForLong) {
  ClientOptions options;
  options.call_timeout = 2 * kTestDeadline;
  FakeControl server;
  server.cancel_operation = [](grpc::ServerContext* context, const v1::CancelOperationRequest&,
                               v1::Operation*) {
    EXPECT_TRUE(FakeControl::WaitUntilCancelled(context));
    return grpc::Status::CANCELLED;
  };
  server.train = [](grpc::ServerContext* context, const v1::TrainRequest&,
                    grpc::ServerWriter<v1::TrainRecord>* writer) {
    context->AddInitialMetadata("regroup-operation", "op-2");
    writer->Write(v1::TrainRecord());
    EXPECT_TRUE(FakeControl::WaitUntilCancelled(context));
    return grpc::Status::CANCELLED;
  };
  absl::Notification cancel;
  const absl::Status status =
      Connect(server, options)
          ->Train(v1::TrainRequest(), [&](const v1::TrainRecord&) { cancel.Notify(); },
                  {&cancel, {}});
  EXPECT_TRUE(absl::IsCancelled(status)) << status;
  EXPECT_EQ(server.CountCalls("CancelOperation"), 1);
}

TEST(ClientStream, Train_IsNeverSentTwice) {
  FakeControl server;
  server.train = [](grpc::ServerContext*, const v1::TrainRequest&,
                    grpc::ServerWriter<v1::TrainRecord>*) { return kGone; };
  EXPECT_TRUE(absl::IsUnavailable(Connect(server)->Train(v1::TrainRequest())));
  EXPECT_EQ(server.CountCalls("Train"), 1);
}

TEST(ClientStream, Train_SlowStep_OfAServerThatAnswers_GoesOn) {
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

TEST(ClientStream, Train_ServerThatAnswersNothing_IsGivenUp) {
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

TEST(ClientStream, Train_TimeoutPasses_ReachesTheServer) {
  FakeControl server;
  std::atomic<bool> cancelled{false};
  server.train = [&](grpc::ServerContext* context, const v1::TrainRequest&,
                     grpc::ServerWriter<v1::TrainRecord>*) {
    cancelled = FakeControl::WaitUntilCancelled(context);
    return grpc::Status::CANCELLED;
  };
  CallOptions call;
  call.timeout = absl::Milliseconds(100);
  const absl::Status status = Connect(server)->Train(v1::TrainRequest(), nullptr, call);
  EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
  server.Stop();
  EXPECT_TRUE(cancelled);
}

TEST(ClientStream, Generate_ReturnsTheOutputs) {
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

TEST(ClientStream, Generate_CancelledAfterItsOutputs_ReturnsThem) {
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

TEST(ClientStream, Generate_StreamWithoutOutputs_IsAnError) {
  FakeControl server;
  server.generate = [](grpc::ServerContext*, const v1::GenerateRequest&,
                       grpc::ServerWriter<v1::GenerateResponse>*) { return grpc::Status::OK; };
  EXPECT_TRUE(absl::IsInternal(Connect(server)->Generate(v1::GenerateRequest()).status()));
}

}  // namespace
}  // namespace regroup
