// The real binary against a Control service in this process.
#include <signal.h>

#include <algorithm>
#include <string>
#include <vector>

#include "client/regroupctl_fixture.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "proto/rpc_status.h"

namespace regroup {
namespace {

using Json = nlohmann::json;

grpc::Status FailedWatch(v1::ErrorReason reason, absl::StatusCode code, const std::string& message,
                         grpc::ServerWriter<v1::Operation>* writer) {
  v1::Operation operation = MakeOperation("create", true);
  operation.set_phase("form");
  operation.set_error(message);
  operation.set_error_code(static_cast<int>(code));
  operation.mutable_error_detail()->set_reason(reason);
  writer->Write(operation);
  return grpc::Status::OK;
}

TEST_F(RegroupctlTest, Create_WaitsAndSaysWhatWasMade) {
  AcceptCreate();
  const Result result = RunCtl(create_);
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(result.out, "engine actor created on ranks 2,1 (134.5 M parameters) in 3.1 s\n");
  EXPECT_EQ(result.err, "");
}

TEST_F(RegroupctlTest, Create_SendsTheSpecWithItsDefaults) {
  AcceptCreate();
  ASSERT_EQ(RunCtl(create_).code, 0);
  EXPECT_EQ(created_.request_id().size(), 32);
  const v1::EngineSpec& spec = created_.spec();
  EXPECT_EQ(spec.name(), "actor");
  EXPECT_EQ(spec.model(), "mlp:in=8,hidden=16,layers=2,out=4");
  EXPECT_EQ(spec.role(), v1::ROLE_TRAIN);
  EXPECT_EQ(spec.dtype(), v1::DTYPE_UNSPECIFIED);
  EXPECT_EQ(spec.layout().ranks(0), 2);
  EXPECT_EQ(spec.layout().dp(), 0);
  EXPECT_EQ(spec.optimizer().name(), "adamw");
  EXPECT_EQ(spec.optimizer().learning_rate(), 1e-5);
  EXPECT_EQ(spec.optimizer().beta1(), 0.9);
  EXPECT_EQ(spec.optimizer().beta2(), 0.999);
  EXPECT_EQ(spec.optimizer().eps(), 1e-8);
  EXPECT_EQ(spec.optimizer().weight_decay(), 0.01);
  EXPECT_EQ(spec.clip_norm(), 0);
  EXPECT_EQ(spec.checks(), v1::CHECK_LEVEL_BASIC);
  EXPECT_EQ(spec.timeout().seconds(), 30);
  EXPECT_FALSE(created_.dry_run());
}

TEST_F(RegroupctlTest, Create_SendsEveryFlag) {
  AcceptCreate();
  ASSERT_EQ(RunCtl({"engine",
                    "create",
                    "actor",
                    "--ranks=0-3",
                    "--model=random:/m",
                    "--optimizer=sgd",
                    "--lr=0.5",
                    "--momentum=0.9",
                    "--weight-decay=0.1",
                    "--clip-norm=1",
                    "--seed=7",
                    "--dp=2",
                    "--tp=2",
                    "--ep=1",
                    "--dtype=bf16",
                    "--recompute",
                    "--checks=full",
                    "--timeout=1500ms",
                    "--shard-over=a:ep",
                    "--shard-over",
                    "b:dp",
                    "--dry-run"})
                .code,
            0);
  const v1::EngineSpec& spec = created_.spec();
  EXPECT_EQ(spec.model(), "random:/m");
  EXPECT_EQ(spec.optimizer().name(), "sgd");
  EXPECT_EQ(spec.optimizer().momentum(), 0.9);
  EXPECT_EQ(spec.optimizer().weight_decay(), 0.1);
  EXPECT_EQ(spec.clip_norm(), 1);
  EXPECT_EQ(spec.seed(), 7);
  EXPECT_EQ(spec.layout().dp(), 2);
  EXPECT_EQ(spec.layout().tp(), 2);
  EXPECT_EQ(spec.layout().ep(), 1);
  EXPECT_EQ(spec.dtype(), v1::DTYPE_BF16);
  EXPECT_TRUE(spec.recompute());
  EXPECT_EQ(spec.checks(), v1::CHECK_LEVEL_FULL);
  EXPECT_EQ(spec.timeout().seconds(), 1);
  EXPECT_EQ(spec.timeout().nanos(), 500000000);
  ASSERT_EQ(spec.shard_over_size(), 2);
  EXPECT_EQ(spec.shard_over(1), "b:dp");
  EXPECT_TRUE(created_.dry_run());
}

TEST_F(RegroupctlTest, Create_Infer_HasNoOptimizer) {
  AcceptCreate();
  ASSERT_EQ(
      RunCtl({"engine", "create", "actor", "--ranks=3", "--model=mlp:x", "--role=infer"}).code, 0);
  EXPECT_EQ(created_.spec().role(), v1::ROLE_INFER);
  EXPECT_FALSE(created_.spec().has_optimizer());
}

TEST_F(RegroupctlTest, Create_NoWait_PrintsTheOperationAtOnce) {
  AcceptCreate();
  std::vector<std::string> arguments = create_;
  arguments.emplace_back("--no-wait");
  EXPECT_EQ(RunCtl(arguments).out,
            "operation op-1 accepted: create actor (regroupctl operation watch op-1)\n");
  arguments.insert(arguments.begin(), {"-o", "json"});
  const Result result = RunCtl(arguments);
  EXPECT_EQ(result.code, 0);
  EXPECT_EQ(Json::parse(result.out)["done"], false);
  EXPECT_EQ(server_.CountCalls("WatchOperation"), 0);
}

TEST_F(RegroupctlTest, Create_Json_IsTheFinishedOperation) {
  AcceptCreate();
  std::vector<std::string> arguments = create_;
  arguments.insert(arguments.end(), {"-o", "json"});
  const Result result = RunCtl(arguments);
  EXPECT_EQ(result.code, 0);
  EXPECT_EQ(std::count(result.out.begin(), result.out.end(), '\n'), 1);
  const Json operation = Json::parse(result.out);
  EXPECT_EQ(operation["id"], "op-1");
  EXPECT_EQ(operation["done"], true);
  EXPECT_EQ(operation["error"], "");
  EXPECT_EQ(operation["seconds"], 3.1);
}

TEST_F(RegroupctlTest, Create_OnATerminal_ShowsProgressAndClearsIt) {
  AcceptCreate();
  const auto child = Start(create_, /*terminal=*/true, {"TERM=xterm"});
  EXPECT_EQ(child->Wait(), 0);
  EXPECT_NE(child->out().find("create actor: load  █████░"), std::string::npos) << child->out();
  EXPECT_NE(child->out().find("50.0 MB of 200.0 MB"), std::string::npos) << child->out();
  EXPECT_NE(child->out().find("\r\x1b[Kengine actor created"), std::string::npos) << child->out();
}

TEST_F(RegroupctlTest, Refused_IsOneWithTheServersWords) {
  server_.create_engine = [](grpc::ServerContext*, const v1::CreateEngineRequest&, v1::Operation*) {
    return ToGrpc(MakeError(absl::StatusCode::kAlreadyExists, "engine \"actor\" exists",
                            v1::ERROR_REASON_INVALID_FIELD));
  };
  const Result result = RunCtl(create_);
  EXPECT_EQ(result.code, 1);
  EXPECT_EQ(result.out, "");
  EXPECT_EQ(result.err, "regroupctl: engine \"actor\" exists\n");
}

TEST_F(RegroupctlTest, NotAvailable_IsOne) {
  server_.create_engine = [](grpc::ServerContext*, const v1::CreateEngineRequest&, v1::Operation*) {
    return ToGrpc(NotAvailable("--tp=2"));
  };
  const Result result = RunCtl(create_);
  EXPECT_EQ(result.code, 1);
  EXPECT_EQ(result.err, "regroupctl: not available in this version: --tp=2\n");
}

TEST_F(RegroupctlTest, RanksDisagree_IsFour) {
  AcceptCreate();
  server_.watch_operation = [](grpc::ServerContext*, const v1::GetOperationRequest&,
                               grpc::ServerWriter<v1::Operation>* writer) {
    return FailedWatch(v1::ERROR_REASON_RANKS_DISAGREE, absl::StatusCode::kAborted,
                       "digests differ", writer);
  };
  const Result result = RunCtl(create_);
  EXPECT_EQ(result.code, 4);
  EXPECT_EQ(result.err,
            "regroupctl: digests differ (engine actor, phase form; regroupctl status)\n");
}

TEST_F(RegroupctlTest, RankLost_IsOneThoughUnavailable) {
  AcceptCreate();
  server_.watch_operation = [](grpc::ServerContext*, const v1::GetOperationRequest&,
                               grpc::ServerWriter<v1::Operation>* writer) {
    return FailedWatch(v1::ERROR_REASON_RANK_LOST, absl::StatusCode::kUnavailable, "rank 1 is lost",
                       writer);
  };
  std::vector<std::string> arguments = create_;
  arguments.insert(arguments.end(), {"-o", "json"});
  const Result result = RunCtl(arguments);
  EXPECT_EQ(result.code, 1);
  EXPECT_EQ(Json::parse(result.out)["error"], "rank 1 is lost");
  EXPECT_NE(result.err.find("regroupctl: rank 1 is lost ("), std::string::npos);
}

TEST_F(RegroupctlTest, ServerGone_IsThree) {
  server_.Stop();
  const Result result = RunCtl({"status"});
  EXPECT_EQ(result.code, 3);
  EXPECT_NE(result.err.find("no answer from " + server_.target()), std::string::npos);
}

TEST_F(RegroupctlTest, ServerDiesDuringTrain_IsThree) {
  server_.train = [](grpc::ServerContext* context, const v1::TrainRequest&,
                     grpc::ServerWriter<v1::TrainRecord>* writer) {
    writer->Write(v1::TrainRecord());
    FakeControl::WaitUntilCancelled(context);
    return grpc::Status(grpc::StatusCode::UNAVAILABLE, "gone");
  };
  const auto child = Start({"train", "actor", "--data=d", "--steps=2", "--batch=1"});
  ASSERT_TRUE(child->WaitForOutput("tokens/s"));
  server_.Stop();
  EXPECT_EQ(child->Wait(), 3) << child->err();
}

TEST_F(RegroupctlTest, Wait_CtrlC_LeavesTheOperationAndNamesIt) {
  AcceptCreate();
  server_.watch_operation = [](grpc::ServerContext* context, const v1::GetOperationRequest&,
                               grpc::ServerWriter<v1::Operation>*) {
    EXPECT_TRUE(FakeControl::WaitUntilCancelled(context));
    return grpc::Status::CANCELLED;
  };
  const auto child = Start(create_);
  ASSERT_TRUE(server_.WaitForCalls("WatchOperation", 1));
  child->Send(SIGINT);
  EXPECT_EQ(child->Wait(), 1);
  EXPECT_EQ(
      child->err(),
      "regroupctl: stopped waiting; operation op-1 goes on (create actor; regroupctl operation "
      "watch op-1)\n");
  EXPECT_EQ(server_.CountCalls("CancelOperation"), 0);
}

TEST_F(RegroupctlTest, Lists_HaveTheirObject) {
  server_.get_status = [](grpc::ServerContext*, const v1::GetStatusRequest&,
                          v1::GetStatusResponse* response) {
    response->add_nodes()->set_node("a");
    v1::Rank* rank = response->add_ranks();
    rank->set_state(v1::RANK_STATE_READY);
    rank->add_engines("actor");
    rank->mutable_ended()->set_seconds(1769860800);
    rank->set_error("killed by SIGKILL");
    v1::Engine* engine = response->add_engines();
    engine->set_name("actor");
    engine->set_role(v1::ROLE_TRAIN);
    engine->set_state(v1::ENGINE_STATE_READY);
    engine->add_ranks(0);
    engine->set_uid("12345678901234567890");
    return grpc::Status::OK;
  };
  const Json ranks = Json::parse(RunCtl({"-o", "json", "rank", "list"}).out);
  EXPECT_EQ(ranks["ranks"][0]["state"], "READY");
  EXPECT_EQ(ranks["ranks"][0]["engines"][0], "actor");
  EXPECT_EQ(ranks["ranks"][0]["ended"], "2026-01-31T12:00:00Z");
  EXPECT_NE(RunCtl({"rank", "list"}).out.find("2026-01-31T12:00:00Z  killed by SIGKILL"),
            std::string::npos);
  EXPECT_EQ(Json::parse(RunCtl({"node", "list", "-o", "json"}).out)["nodes"][0]["node"], "a");
  const Json engines = Json::parse(RunCtl({"-o", "json", "engine", "list"}).out);
  EXPECT_EQ(engines["engines"][0]["role"], "TRAIN");
  EXPECT_EQ(engines["engines"][0]["uid"], "12345678901234567890");
  const Json status = Json::parse(RunCtl({"status", "-ojson"}).out);
  EXPECT_EQ(status.size(), 4);
  EXPECT_TRUE(status["operations"].empty());
  EXPECT_NE(RunCtl({"status"}).out.find("■ T*"), std::string::npos);
}

TEST_F(RegroupctlTest, Color_OnlyOnATerminalWithoutNoColor) {
  server_.get_status = [](grpc::ServerContext*, const v1::GetStatusRequest&,
                          v1::GetStatusResponse* response) {
    response->add_ranks()->set_state(v1::RANK_STATE_READY);
    return grpc::Status::OK;
  };
  EXPECT_EQ(RunCtl({"rank", "list"}).out.find('\x1b'), std::string::npos);
  const auto colored = Start({"rank", "list"}, /*terminal=*/true, {"TERM=xterm"});
  EXPECT_EQ(colored->Wait(), 0);
  EXPECT_NE(colored->out().find("\x1b[32mREADY"), std::string::npos) << colored->out();
  const auto plain = Start({"rank", "list"}, /*terminal=*/true, {"TERM=xterm", "NO_COLOR=1"});
  EXPECT_EQ(plain->Wait(), 0);
  EXPECT_EQ(plain->out().find('\x1b'), std::string::npos) << plain->out();
}

TEST_F(RegroupctlTest, Operation_WatchEndsAsItDoes) {
  server_.watch_operation = [](grpc::ServerContext*, const v1::GetOperationRequest&,
                               grpc::ServerWriter<v1::Operation>* writer) {
    writer->Write(MakeOperation("create", false));
    return FailedWatch(v1::ERROR_REASON_MEMORY, absl::StatusCode::kResourceExhausted, "no memory",
                       writer);
  };
  const Result result = RunCtl({"-o", "json", "operation", "watch", "op-1"});
  EXPECT_EQ(result.code, 1);
  EXPECT_EQ(std::count(result.out.begin(), result.out.end(), '\n'), 2);
  EXPECT_NE(result.err.find("no memory"), std::string::npos);
}

TEST_F(RegroupctlTest, Operation_DescribeOfAFailedOne_Works) {
  server_.get_operation = [](grpc::ServerContext*, const v1::GetOperationRequest&,
                             v1::Operation* operation) {
    *operation = MakeOperation("create", true);
    operation->set_error("no memory");
    return grpc::Status::OK;
  };
  const Result result = RunCtl({"-o", "json", "operation", "describe", "op-1"});
  EXPECT_EQ(result.code, 0);
  EXPECT_EQ(Json::parse(result.out)["error"], "no memory");
}

TEST_F(RegroupctlTest, Operation_CancelWaitsForTheEnd) {
  v1::Operation end = MakeOperation("relayout", true);
  server_.cancel_operation = [](grpc::ServerContext*, const v1::CancelOperationRequest& request,
                                v1::Operation* operation) {
    EXPECT_EQ(request.request_id().size(), 32);
    *operation = MakeOperation("relayout", false);
    return grpc::Status::OK;
  };
  server_.watch_operation = [&](grpc::ServerContext*, const v1::GetOperationRequest&,
                                grpc::ServerWriter<v1::Operation>* writer) {
    writer->Write(end);
    return grpc::Status::OK;
  };
  EXPECT_EQ(RunCtl({"operation", "cancel", "op-1"}).code, 1);  // it was faster
  end.set_error("cancelled");
  end.set_error_code(static_cast<int>(absl::StatusCode::kCancelled));
  const Result result = RunCtl({"operation", "cancel", "op-1"});
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(result.out, "operation op-1 cancelled after 3.1 s\n");
}

TEST_F(RegroupctlTest, Moves_SendWhatWasAsked) {
  v1::RelayoutEngineRequest relayout;
  v1::SyncEngineRequest sync;
  v1::ExportEngineRequest exported;
  server_.relayout_engine = [&](grpc::ServerContext*, const v1::RelayoutEngineRequest& request,
                                v1::Operation* operation) {
    relayout = request;
    *operation = MakeOperation("relayout", true);
    operation->set_detail("2 -> 3 ranks, 538.1 MB moved");
    return grpc::Status::OK;
  };
  server_.sync_engine = [&](grpc::ServerContext*, const v1::SyncEngineRequest& request,
                            v1::Operation* operation) {
    sync = request;
    *operation = MakeOperation("sync", true);
    return grpc::Status::OK;
  };
  server_.export_engine = [&](grpc::ServerContext*, const v1::ExportEngineRequest& request,
                              v1::Operation* operation) {
    exported = request;
    *operation = MakeOperation("export", true);
    return grpc::Status::OK;
  };
  EXPECT_EQ(RunCtl({"engine", "relayout", "actor", "--ranks=0-2", "--if-generation=4",
                    "--staging-mb=2", "--in-place", "--dry-run"})
                .out,
            "engine actor moved to ranks 0-2 (2 -> 3 ranks, 538.1 MB moved) in 3.1 s\n");
  EXPECT_EQ(relayout.layout().ranks_size(), 3);
  EXPECT_EQ(relayout.expected_generation(), 4);
  EXPECT_EQ(relayout.staging_bytes(), 2 << 20);
  EXPECT_TRUE(relayout.in_place());
  EXPECT_TRUE(relayout.dry_run());
  EXPECT_EQ(RunCtl({"engine", "sync", "actor", "rollout"}).out,
            "weights of actor copied into rollout (200.0 MB moved) in 3.1 s\n");
  EXPECT_EQ(sync.source(), "actor");
  EXPECT_EQ(sync.destination(), "rollout");
  EXPECT_EQ(RunCtl({"export", "actor", "/x/../out/"}).out,
            "engine actor exported to /out (200.0 MB moved) in 3.1 s\n");
  EXPECT_EQ(exported.directory(), "/out");
}

}  // namespace
}  // namespace regroup
