// Streams of the real binary: train and generate, and Ctrl-C in them.
#include <signal.h>
#include <unistd.h>

#include <fstream>
#include <string>
#include <vector>

#include "absl/synchronization/notification.h"
#include "client/regroupctl_fixture.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "proto/rpc_status.h"

namespace regroup {
namespace {

using Json = nlohmann::json;

class TrainTest : public RegroupctlTest {
 protected:
  enum class SaysOperation { kInMetadata, kInRecords, kNowhere };

  // Writes one record, then trains until it is cancelled; its operation, op-2, ends only after
  // that. The train before it, op-1, goes on.
  void TrainUntilCancelled(SaysOperation says = SaysOperation::kInMetadata) {
    server_.train = [this, says](grpc::ServerContext* context, const v1::TrainRequest&,
                                 grpc::ServerWriter<v1::TrainRecord>* writer) {
      if (says == SaysOperation::kInMetadata) {
        context->AddInitialMetadata("regroup-operation", "op-2");
      }
      v1::TrainRecord record;
      if (says == SaysOperation::kInRecords) record.set_operation("op-2");
      record.set_step(1);
      record.set_loss(2.5);
      writer->Write(record);
      const absl::Time deadline = absl::Now() + kTestDeadline;
      while (!context->IsCancelled() && !asked_.HasBeenNotified() && absl::Now() < deadline) {
        absl::SleepFor(absl::Milliseconds(1));
      }
      record.set_step(2);
      record.set_loss(1.5);
      if (asked_.HasBeenNotified()) writer->Write(record);
      EXPECT_LT(absl::Now(), deadline);
      ended_.Notify();
      return grpc::Status::CANCELLED;
    };
    server_.list_operations = [](grpc::ServerContext*, const v1::ListOperationsRequest&,
                                 v1::ListOperationsResponse* response) {
      *response->add_operations() = MakeOperation("train", false);
      v1::Operation* operation = response->add_operations();
      *operation = MakeOperation("train", false);
      operation->set_id("op-2");
      return grpc::Status::OK;
    };
    server_.watch_operation = [this](grpc::ServerContext*, const v1::GetOperationRequest& request,
                                     grpc::ServerWriter<v1::Operation>* writer) {
      EXPECT_EQ(request.id(), "op-2");
      EXPECT_TRUE(ended_.WaitForNotificationWithTimeout(kTestDeadline));
      v1::Operation operation = MakeOperation("train", true);
      operation.set_id("op-2");
      operation.set_phase("step");
      operation.set_error("cancelled");
      writer->Write(operation);
      return grpc::Status::OK;
    };
    server_.describe_engine = [this](grpc::ServerContext*, const v1::DescribeEngineRequest& request,
                                     v1::Engine* engine) {
      engine->set_name(request.name());
      engine->set_step(2);
      engine->set_activity(activity_);
      return grpc::Status::OK;
    };
  }

  // From now on CancelOperation is served: it ends the train above.
  void TakeCancellations() {
    server_.cancel_operation = [this](grpc::ServerContext*,
                                      const v1::CancelOperationRequest& request,
                                      v1::Operation* operation) {
      EXPECT_EQ(request.id(), "op-2");
      operation->set_id(request.id());
      asked_.Notify();
      return grpc::Status::OK;
    };
  }

  // So that a silent stream is not given up.
  void AnswerProbes() {
    server_.get_status = [](grpc::ServerContext*, const v1::GetStatusRequest&,
                            v1::GetStatusResponse*) { return grpc::Status::OK; };
  }

  absl::Notification asked_;
  absl::Notification ended_;
  std::string activity_;  // of the engine once the run has ended
  const std::vector<std::string> train_ = {"train", "actor", "--data=d", "--steps=20", "--batch=4"};
};

TEST_F(TrainTest, Records_AreALineAStep) {
  v1::TrainRequest asked;
  server_.train = [&](grpc::ServerContext*, const v1::TrainRequest& request,
                      grpc::ServerWriter<v1::TrainRecord>* writer) {
    asked = request;
    for (int step = 1; step <= 2; ++step) {
      v1::TrainRecord record;
      record.set_step(step);
      record.set_loss(2.5);
      record.set_tokens(512);
      record.set_seconds(2);
      writer->Write(record);
    }
    return grpc::Status::OK;
  };
  const std::vector<std::string> arguments = {"train",     "actor",     "--data=/d/t.u16.bin",
                                              "--steps=2", "--batch=4", "--seq=128"};
  const Result table = RunCtl(arguments);
  EXPECT_EQ(table.code, 0) << table.err;
  EXPECT_EQ(table.out,
            "    step         loss    grad norm     tokens    seconds    tokens/s\n"
            "       1          2.5            0        512      2.000       256.0\n"
            "       2          2.5            0        512      2.000       256.0\n"
            "2 steps in 4.0 s, 256.0 tokens/s\n");
  EXPECT_EQ(asked.name(), "actor");
  EXPECT_EQ(asked.data(), "/d/t.u16.bin");
  EXPECT_EQ(asked.steps(), 2);
  EXPECT_EQ(asked.batch(), 4);
  EXPECT_EQ(asked.seq(), 128);
  EXPECT_EQ(asked.accumulate(), 1);

  std::vector<std::string> with_json = arguments;
  with_json.insert(with_json.begin(), {"-o", "json"});
  const Result json = RunCtl(with_json);
  EXPECT_EQ(json.code, 0);
  const size_t end = json.out.find('\n');
  const Json first = Json::parse(json.out.substr(0, end));
  EXPECT_EQ(first["step"], 1);
  EXPECT_EQ(first["skipped"], false);
  EXPECT_EQ(Json::parse(json.out.substr(end + 1))["step"], 2);
}

TEST_F(TrainTest, OnATerminal_HasTheTimeLeft) {
  server_.train = [](grpc::ServerContext*, const v1::TrainRequest&,
                     grpc::ServerWriter<v1::TrainRecord>* writer) {
    v1::TrainRecord record;
    record.set_seconds(2);
    writer->Write(record);
    return grpc::Status::OK;
  };
  const auto child = Start(train_, /*terminal=*/true);
  EXPECT_EQ(child->Wait(), 0);
  EXPECT_NE(child->out().find("tokens/s  left"), std::string::npos) << child->out();
  EXPECT_NE(child->out().find("38.0 s"), std::string::npos) << child->out();
}

TEST_F(TrainTest, CtrlC_ShowsTheStepThatStillRan) {
  TakeCancellations();
  TrainUntilCancelled();
  const auto child = Start(train_);
  ASSERT_TRUE(child->WaitForOutput("2.5"));
  child->Send(SIGINT);
  EXPECT_EQ(child->Wait(), 0) << child->err();
  EXPECT_NE(child->out().find("       2          1.5"), std::string::npos) << child->out();
  EXPECT_EQ(child->err(), "stopped after step 2 (2 of 20 steps shown)\n");
}

// As far as a server can do that.
TEST_F(TrainTest, CtrlC_EndsAfterTheStepAndSaysWhich) {
  TrainUntilCancelled();
  const auto child = Start(train_);
  ASSERT_TRUE(child->WaitForOutput("2.5"));
  child->Send(SIGINT);
  EXPECT_EQ(child->Wait(), 0) << child->err();
  EXPECT_EQ(child->err(), "stopped after step 2 (1 of 20 steps shown)\n");
}

TEST_F(TrainTest, CtrlC_OperationOfTheRecords_IsWaitedForToo) {
  TrainUntilCancelled(SaysOperation::kInRecords);
  const auto child = Start(train_);
  ASSERT_TRUE(child->WaitForOutput("2.5"));
  child->Send(SIGINT);
  EXPECT_EQ(child->Wait(), 0) << child->err();
  EXPECT_EQ(child->err(), "stopped after step 2 (1 of 20 steps shown)\n");
}

TEST_F(TrainTest, CtrlC_NextTrainOfTheQueue_TakesNoPartInIt) {
  TrainUntilCancelled();
  activity_ = "train";
  const auto child = Start(train_);
  ASSERT_TRUE(child->WaitForOutput("2.5"));
  child->Send(SIGINT);
  EXPECT_EQ(child->Wait(), 0) << child->err();
  EXPECT_EQ(child->err(),
            "stopped (1 of 20 steps shown); engine actor is at step 2 and still trains\n");
}

TEST_F(TrainTest, CtrlC_OperationNotKnown_EndsWithTheStream) {
  TrainUntilCancelled(SaysOperation::kNowhere);
  const auto child = Start(train_);
  ASSERT_TRUE(child->WaitForOutput("2.5"));
  child->Send(SIGINT);
  EXPECT_EQ(child->Wait(), 0) << child->err();
  EXPECT_EQ(child->err(), "stopped (1 of 20 steps shown); engine actor is at step 2\n");
  EXPECT_EQ(server_.CountCalls("WatchOperation"), 0);
}

TEST_F(TrainTest, SecondCtrlC_ExitsAtOnce) {
  TrainUntilCancelled();
  server_.watch_operation = [](grpc::ServerContext* context, const v1::GetOperationRequest&,
                               grpc::ServerWriter<v1::Operation>*) {
    FakeControl::WaitUntilCancelled(context);
    return grpc::Status::CANCELLED;
  };
  const auto child = Start(train_);
  ASSERT_TRUE(child->WaitForOutput("2.5"));
  child->Send(SIGINT);
  ASSERT_TRUE(server_.WaitForCalls("WatchOperation", 1));
  child->Send(SIGINT);
  EXPECT_EQ(child->Wait(), 130);
}

TEST_F(TrainTest, FullDisk_EndsTheRun) {
  AnswerProbes();
  TrainUntilCancelled();
  ChildProcess shell("/bin/sh",
                     {"-c",
                      "exec client/regroupctl train actor --data=d --steps=20 --batch=4 "
                      ">/dev/full"},
                     {{"REGROUP_SERVER=" + server_.target()}, false, ""});
  EXPECT_EQ(shell.Wait(), 1);
  EXPECT_EQ(shell.err(), "regroupctl: cannot write to stdout: No space left on device\n");
  EXPECT_TRUE(ended_.WaitForNotificationWithTimeout(kTestDeadline));
}

TEST_F(TrainTest, ReaderGone_EndsTheRun) {
  AnswerProbes();
  absl::Notification gone;
  server_.train = [&](grpc::ServerContext* context, const v1::TrainRequest&,
                      grpc::ServerWriter<v1::TrainRecord>* writer) {
    v1::TrainRecord record;
    record.set_loss(2.5);
    writer->Write(record);
    EXPECT_TRUE(gone.WaitForNotificationWithTimeout(kTestDeadline));
    writer->Write(record);
    EXPECT_TRUE(FakeControl::WaitUntilCancelled(context));
    return grpc::Status::CANCELLED;
  };
  const auto child = Start(train_);
  ASSERT_TRUE(child->WaitForOutput("2.5"));
  child->CloseOutput();
  gone.Notify();
  EXPECT_EQ(child->Wait(), 1);
  EXPECT_EQ(child->err(), "regroupctl: cannot write to stdout: Broken pipe\n");
}

TEST_F(TrainTest, CancelledByTheServer_IsAnError) {
  server_.train = [](grpc::ServerContext*, const v1::TrainRequest&,
                     grpc::ServerWriter<v1::TrainRecord>*) {
    return ToGrpc(MakeError(absl::StatusCode::kCancelled, "engine actor was deleted",
                            v1::ERROR_REASON_CANCELLED));
  };
  const Result result = RunCtl(train_);
  EXPECT_EQ(result.code, 1);
  EXPECT_EQ(result.err, "regroupctl: engine actor was deleted\n");
}

class GenerateTest : public RegroupctlTest {
 protected:
  void Echo() {
    server_.generate = [this](grpc::ServerContext*, const v1::GenerateRequest& request,
                              grpc::ServerWriter<v1::GenerateResponse>* writer) {
      asked_ = request;
      v1::GenerateResponse response;
      response.set_done(true);
      for (const v1::Prompt& prompt : request.prompts()) {
        v1::Output* output = response.add_outputs();
        *output->mutable_tokens() = prompt.tokens();
        output->add_logprobs(-0.5);
        output->set_weights_version(3);
        output->set_finish_reason(v1::FINISH_REASON_STOP);
      }
      writer->Write(response);
      return grpc::Status::OK;
    };
  }

  v1::GenerateRequest asked_;
};

TEST_F(GenerateTest, Json_HasOutputs) {
  Echo();
  const Result result = RunCtl({"-o", "json", "generate", "rollout", "--tokens=5,6",
                                "--max-tokens=4", "--temperature=0.5", "--top-p=0.9", "--top-k=3",
                                "--seed=9", "--stop-token=1", "--stop-token=2"});
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(result.out,
            "{\"outputs\":[{\"tokens\":[5,6],\"logprobs\":[-0.5],\"weightsVersion\":3,"
            "\"finishReason\":\"STOP\"}]}\n");
  EXPECT_EQ(asked_.max_tokens(), 4);
  EXPECT_EQ(asked_.temperature(), 0.5);
  EXPECT_EQ(asked_.top_p(), 0.9);
  EXPECT_EQ(asked_.top_k(), 3);
  EXPECT_EQ(asked_.seed(), 9);
  EXPECT_EQ(asked_.stop_tokens_size(), 2);
}

TEST_F(GenerateTest, TokensFile_IsAPromptALine) {
  Echo();
  const std::string path = ::testing::TempDir() + "/prompts" + std::to_string(getpid());
  std::ofstream(path) << "[1,2]\n[3]\n";
  const Result result = RunCtl({"generate", "rollout", "--tokens-file=" + path, "--max-tokens=4"});
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_NE(
      result.out.find("output 1: 1 token, STOP, mean logprob -0.5000, weights version 3\n  3\n"),
      std::string::npos)
      << result.out;
  EXPECT_EQ(asked_.temperature(), 0);
  EXPECT_EQ(asked_.top_p(), 1);
}

TEST_F(GenerateTest, CancelledByTheServer_HasItsOutputs) {
  for (const grpc::Status& end : {grpc::Status::OK, grpc::Status::CANCELLED}) {
    server_.generate = [&](grpc::ServerContext*, const v1::GenerateRequest&,
                           grpc::ServerWriter<v1::GenerateResponse>* writer) {
      v1::GenerateResponse response;
      response.set_done(true);
      v1::Output* output = response.add_outputs();
      output->add_tokens(7);
      output->set_finish_reason(v1::FINISH_REASON_CANCELLED);
      writer->Write(response);
      return end;
    };
    const Result result =
        RunCtl({"-o", "json", "generate", "rollout", "--tokens=1", "--max-tokens=4"});
    EXPECT_EQ(result.code, 1) << result.out;
    EXPECT_NE(result.err.find("cancelled"), std::string::npos) << result.err;
    EXPECT_NE(result.out.find("\"tokens\":[7]"), std::string::npos) << result.out;
    EXPECT_NE(result.out.find("\"finishReason\":\"CANCELLED\""), std::string::npos) << result.out;
  }
}

TEST_F(GenerateTest, CtrlC_Cancels) {
  server_.generate = [](grpc::ServerContext* context, const v1::GenerateRequest&,
                        grpc::ServerWriter<v1::GenerateResponse>*) {
    EXPECT_TRUE(FakeControl::WaitUntilCancelled(context));
    return grpc::Status::CANCELLED;
  };
  const auto child = Start({"generate", "rollout", "--tokens=1", "--max-tokens=4"});
  ASSERT_TRUE(server_.WaitForCalls("Generate", 1));
  child->Send(SIGINT);
  EXPECT_EQ(child->Wait(), 1);
  EXPECT_EQ(child->err(), "regroupctl: generation cancelled\n");
}

}  // namespace
}  // namespace regroup
