// What regroupctl would never send: every wrong field of every request is refused by the server,
// with an error that fits a terminal, and changes neither an engine nor a rank.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "grpcpp/create_channel.h"
#include "proto/rpc_status.h"
#include "regroup/v1/control.grpc.pb.h"
#include "tests/system/cli.h"
#include "tests/system/refusal.h"

namespace regroup::harness {
namespace {

using Words = std::vector<std::string>;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr size_t kLong = 100000;  // bytes: more than the metadata of an error may have
const char kNul[] = "a\0b\nc\x1b[31m";

std::string WithNul() { return std::string(kNul, sizeof(kNul) - 1); }
std::string Long(const std::string& start = "") { return start + std::string(kLong, 'n'); }

class RpcRefusalTest : public RefusalTest {
 protected:
  template <typename Request>
  using Change = std::function<void(Request&)>;
  template <typename Request, typename Response>
  using Unary = grpc::Status (v1::Control::Stub::*)(grpc::ClientContext*, const Request&,
                                                    Response*);

  void SetUp() override {
    RefusalTest::SetUp();
    stub_ = v1::Control::NewStub(
        grpc::CreateChannel(daemon().address(), grpc::InsecureChannelCredentials()));
    before_ = Snapshot();
  }

  static void SetDeadline(grpc::ClientContext* context) {
    context->set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
  }

  // What a refused call must leave as it is.
  std::string Snapshot() {
    grpc::ClientContext context;
    SetDeadline(&context);
    v1::GetStatusResponse status;
    EXPECT_TRUE(stub_->GetStatus(&context, {}, &status).ok());
    std::string text;
    for (const v1::Engine& engine : status.engines()) text += engine.ShortDebugString() + "\n";
    for (v1::Rank& rank : *status.mutable_ranks()) {
      rank.clear_rss_bytes();
      text += rank.ShortDebugString() + "\n";
    }
    EXPECT_EQ(status.operations_size(), 0);
    return text;
  }

  // A unary call; of one that is accepted, the outcome of its operation.
  template <typename Request>
  grpc::Status Send(Unary<Request, v1::Operation> method, const Request& request) {
    v1::Operation operation;
    {
      grpc::ClientContext context;
      SetDeadline(&context);
      const grpc::Status status = (stub_.get()->*method)(&context, request, &operation);
      if (!status.ok()) return status;
    }
    grpc::ClientContext context;
    SetDeadline(&context);
    v1::GetOperationRequest watched;
    watched.set_id(operation.id());
    const auto reader = stub_->WatchOperation(&context, watched);
    while (reader->Read(&operation)) {
    }
    EXPECT_TRUE(reader->Finish().ok());
    return grpc::Status(static_cast<grpc::StatusCode>(operation.error_code()), operation.error(),
                        operation.error_detail().SerializeAsString());
  }

  template <typename Reader, typename Response>
  static grpc::Status Drain(Reader reader, Response response) {
    while (reader->Read(&response)) {
    }
    return reader->Finish();
  }

  // `status` refuses `what`: right code, words, form; nothing changed.
  void ExpectRefused(const std::string& what, const grpc::Status& status, grpc::StatusCode code,
                     const Words& said) {
    SCOPED_TRACE(what.substr(0, 200) + " -> " + status.error_message().substr(0, 500));
    EXPECT_EQ(status.error_code(), code);
    const std::string& message = status.error_message();
    for (const std::string& word : said) {
      EXPECT_NE(message.find(word), std::string::npos) << word << " is not mentioned";
    }
    EXPECT_TRUE(std::all_of(message.begin(), message.end(),
                            [](unsigned char c) { return c >= ' ' && c != 0x7f; }));
    EXPECT_LE(message.size(), 6003u);
    if (code == grpc::INVALID_ARGUMENT) {
      EXPECT_TRUE(message.find("allowed") != std::string::npos ||
                  message.find("must be") != std::string::npos);
    }
    EXPECT_TRUE(DetailOf(FromGrpc(status)).has_value());
    const std::string now = Snapshot();
    EXPECT_EQ(now, before_);
    before_ = now;
  }

  // Sends a good request with one change.
  template <typename Request>
  void Refused(Unary<Request, v1::Operation> method, Request request, const Change<Request>& change,
               const Words& said, grpc::StatusCode code = grpc::INVALID_ARGUMENT) {
    request.set_request_id("refused-" + std::to_string(++requests_));
    change(request);
    ExpectRefused(request.GetTypeName() + " " + request.ShortDebugString(), Send(method, request),
                  code, said);
  }

  std::unique_ptr<v1::Control::Stub> stub_;
  std::string before_;
  static int requests_;
};

int RpcRefusalTest::requests_ = 0;

TEST_F(RpcRefusalTest, CreateEngine) {
  using Request = v1::CreateEngineRequest;
  Request good;
  good.mutable_spec()->set_name("new");
  good.mutable_spec()->set_model(kMlpSpec);
  good.mutable_spec()->set_role(v1::ROLE_TRAIN);
  good.mutable_spec()->mutable_layout()->add_ranks(0);
  good.mutable_spec()->mutable_optimizer()->set_name("sgd");
  good.mutable_spec()->mutable_optimizer()->set_learning_rate(0.1);
  const auto refuse = [&](const Change<v1::EngineSpec>& change, const Words& said,
                          grpc::StatusCode code = grpc::INVALID_ARGUMENT) {
    Refused<Request>(
        &v1::Control::Stub::CreateEngine, good,
        [&](Request& request) { change(*request.mutable_spec()); }, said, code);
  };
  for (const std::string& id : {std::string(), std::string(129, 'i'), Long()}) {
    Refused<Request>(&v1::Control::Stub::CreateEngine, good,
                     [&](Request& request) { request.set_request_id(id); },
                     {"request_id", "1 to 128 bytes"});
  }
  refuse([](auto& spec) { spec.Clear(); }, {"NAME="});
  for (const std::string& name : {std::string(), std::string("../x"), WithNul(), Long()}) {
    refuse([&](auto& spec) { spec.set_name(name); }, {"NAME=" + name.substr(0, 1)});
  }
  refuse([](auto& spec) { spec.set_name("actor"); }, {"actor", "allowed"}, grpc::ALREADY_EXISTS);

  refuse([](auto& spec) { spec.clear_layout(); }, {"--ranks", "at least one"});
  refuse([](auto& spec) { spec.mutable_layout()->add_ranks(0); }, {"--ranks=0", "twice"});
  for (const int rank : {-1, INT32_MIN}) {
    refuse([&](auto& spec) { spec.mutable_layout()->set_ranks(0, rank); },
           {"--ranks", std::to_string(rank), "0 to"});
  }
  for (const int rank : {4, INT32_MAX}) {
    refuse([&](auto& spec) { spec.mutable_layout()->set_ranks(0, rank); },
           {"--ranks", std::to_string(rank), "allowed: 0 to 3"}, grpc::NOT_FOUND);
  }
  for (const int size : {-1, 2, 1 << 16, INT32_MIN, INT32_MAX}) {
    refuse([&](auto& spec) { spec.mutable_layout()->set_dp(size); }, {"--dp", "1"});
    refuse([&](auto& spec) { spec.mutable_layout()->set_tp(size); }, {"--tp", "1"});
    refuse([&](auto& spec) { spec.mutable_layout()->set_ep(size); }, {"--ep", "1"});
  }
  refuse(  // a product that is 0 in 32 bits
      [](auto& spec) {
        for (int rank = 1; rank < 4; ++rank) spec.mutable_layout()->add_ranks(rank);
        spec.mutable_layout()->set_dp(1 << 16);
        spec.mutable_layout()->set_tp(1 << 16);
      },
      {"--dp=65536", "4"});

  for (const double lr : {kNan, kInf, -kInf, -1.0, 0.0, 1e39, 1e-50}) {
    refuse([&](auto& spec) { spec.mutable_optimizer()->set_learning_rate(lr); },
           {"--lr=", "above 0"});
  }
  refuse([](auto& spec) { spec.clear_optimizer(); }, {"--lr="});
  for (const double value : {kNan, kInf, -kInf, -1.0, 1e39}) {
    refuse([&](auto& spec) { spec.mutable_optimizer()->set_momentum(value); }, {"--momentum="});
    refuse([&](auto& spec) { spec.mutable_optimizer()->set_weight_decay(value); },
           {"--weight-decay="});
    refuse([&](auto& spec) { spec.mutable_optimizer()->set_beta1(value); }, {"--beta1="});
    refuse([&](auto& spec) { spec.mutable_optimizer()->set_beta2(value); }, {"--beta2="});
    refuse([&](auto& spec) { spec.mutable_optimizer()->set_eps(value); }, {"--eps="});
    refuse([&](auto& spec) { spec.set_clip_norm(value); }, {"--clip-norm="});
  }
  for (const std::string& name : {std::string("lion"), WithNul(), Long()}) {
    refuse([&](auto& spec) { spec.mutable_optimizer()->set_name(name); },
           {"--optimizer=" + name.substr(0, 1), "sgd, adam, adamw"});
    refuse([&](auto& spec) { spec.set_device(name); }, {"--device=" + name.substr(0, 1), "cpu"});
  }
  for (const int value : {77, -1}) {
    const std::string number = std::to_string(value);
    refuse([&](auto& spec) { spec.set_role(static_cast<v1::Role>(value)); },
           {"--role=" + number, "train, infer"});
    refuse([&](auto& spec) { spec.set_dtype(static_cast<v1::DType>(value)); },
           {"--dtype=" + number, "fp32, bf16, fp16"});
    refuse([&](auto& spec) { spec.set_checks(static_cast<v1::CheckLevel>(value)); },
           {"--checks=" + number, "off, basic, full"});
  }
  for (const int64_t seconds : {INT64_MIN, int64_t{-1}, int64_t{3601}, INT64_MAX}) {
    refuse([&](auto& spec) { spec.mutable_timeout()->set_seconds(seconds); },
           {"--timeout=", "1s to 1h"});
  }
  for (const std::string& model :
       {std::string(), std::string("relative/folder"), WithNul(), Long(), Long("mlp:in="),
        Long("/"), "mlp:" + WithNul(), Data().root + "/" + WithNul(), "random:" + Long("/")}) {
    refuse([&](auto& spec) { spec.set_model(model); }, {"--model="});
  }
  refuse([](auto& spec) { spec.set_model(Data().root + "/a\nb"); }, {"--model=", "a\\nb"},
         grpc::NOT_FOUND);
  refuse([](auto& spec) { spec.set_model(Data().root + "/" + std::string(3000, '\x01')); },
         {"--model="}, grpc::NOT_FOUND);
}

TEST_F(RpcRefusalTest, RelayoutEngine) {
  using Request = v1::RelayoutEngineRequest;
  Request good;
  good.set_name("actor");
  good.mutable_layout()->add_ranks(1);
  good.mutable_layout()->add_ranks(2);
  const auto refuse = [&](const Change<Request>& change, const Words& said,
                          grpc::StatusCode code = grpc::INVALID_ARGUMENT) {
    Refused<Request>(&v1::Control::Stub::RelayoutEngine, good, change, said, code);
  };
  refuse([](auto& request) { request.clear_layout(); }, {"--ranks"});
  refuse([](auto& request) { request.mutable_layout()->add_ranks(1); }, {"--ranks", "twice"});
  refuse([](auto& request) { request.mutable_layout()->add_ranks(INT32_MIN); }, {"--ranks"});
  refuse([](auto& request) { request.mutable_layout()->add_ranks(INT32_MAX); },
         {"--ranks", "allowed: 0 to 3"}, grpc::NOT_FOUND);
  for (const int size : {-1, 3, 1 << 16, INT32_MAX}) {
    refuse([&](auto& request) { request.mutable_layout()->set_dp(size); }, {"--dp=", "2"});
    refuse([&](auto& request) { request.mutable_layout()->set_tp(size); }, {"--tp=", "2"});
  }
  for (const int64_t generation : {int64_t{-1}, INT64_MIN}) {
    refuse([&](auto& request) { request.set_expected_generation(generation); },
           {"--if-generation=" + std::to_string(generation)});
  }
  refuse([](auto& request) { request.set_expected_generation(INT64_MAX); },
         {"--if-generation=" + std::to_string(INT64_MAX), "generation 1"}, grpc::ABORTED);
  for (const int64_t bytes : {int64_t{-1}, int64_t{1}, INT64_MIN, INT64_MAX}) {
    refuse([&](auto& request) { request.set_staging_bytes(bytes); },
           {"--staging-mb=" + std::to_string(bytes), "MiB"});
  }
}

TEST_F(RpcRefusalTest, SetEngine) {
  using Request = v1::SetEngineRequest;
  Request good;
  good.set_name("actor");
  const auto refuse = [&](const Change<Request>& change, const Words& said) {
    Refused<Request>(&v1::Control::Stub::SetEngine, good, change, said);
  };
  refuse([](auto&) {}, {"--checks", "--timeout", "--lr"});
  for (const int value : {77, -1}) {
    refuse([&](auto& request) { request.set_checks(static_cast<v1::CheckLevel>(value)); },
           {"--checks=" + std::to_string(value), "off, basic, full"});
  }
  for (const double lr : {kNan, kInf, -kInf, -1.0, 0.0, 1e39, 1e-50}) {
    refuse([&](auto& request) { request.set_learning_rate(lr); }, {"--lr=", "above 0"});
  }
  const std::vector<std::pair<int64_t, int>> durations = {
      {0, 0}, {INT64_MIN, 0}, {INT64_MAX, 0}, {30, INT32_MAX}, {30, INT32_MIN}, {-30, -1}};
  for (const auto& [seconds, nanos] : durations) {
    refuse(
        [&, seconds = seconds, nanos = nanos](auto& request) {
          request.mutable_timeout()->set_seconds(seconds);
          request.mutable_timeout()->set_nanos(nanos);
        },
        {"--timeout=", std::to_string(seconds),
         nanos < -1 || nanos > 0 ? std::to_string(nanos) : "", "1s to 1h"});
  }
}

TEST_F(RpcRefusalTest, ExportEngine) {
  using Request = v1::ExportEngineRequest;
  Request good;
  good.set_name("actor");
  const std::string root = Data().root;
  for (const std::string& folder :
       {std::string(), std::string("out"), std::string("../out"), std::string("/etc/out"),
        WithNul(), root + "/" + WithNul(), Long(), Long("/"), root + "/../../etc/out", root}) {
    Refused<Request>(&v1::Control::Stub::ExportEngine, good,
                     [&](Request& request) { request.set_directory(folder); }, {"DIR="});
  }
  Refused<Request>(
      &v1::Control::Stub::ExportEngine, good,
      [&](Request& request) { request.set_directory(root + "/no\nsuch/out"); },
      {"DIR=", "no\\nsuch"}, grpc::NOT_FOUND);
  Refused<Request>(
      &v1::Control::Stub::ExportEngine, good,
      [&](Request& request) {
        request.set_directory(root + "/" + std::string(3000, '\x02') + "/out");
      },
      {"DIR="}, grpc::NOT_FOUND);
  // The one that names its folder has a name that no file can have.
  Refused<Request>(
      &v1::Control::Stub::ExportEngine, good,
      [&](Request& request) { request.set_directory(root + "/" + std::string(1000, '\x03')); },
      {"DIR="}, grpc::INVALID_ARGUMENT);
}

TEST_F(RpcRefusalTest, Train) {
  v1::TrainRequest good;
  good.set_name("actor");
  good.set_data(Data().text.path);
  good.set_steps(1);
  good.set_batch(2);
  good.set_seq(kSeq);
  const auto refuse = [&](const Change<v1::TrainRequest>& change, const Words& said,
                          grpc::StatusCode code = grpc::INVALID_ARGUMENT) {
    v1::TrainRequest request = good;
    request.set_request_id("refused-" + std::to_string(++requests_));
    change(request);
    grpc::ClientContext context;
    SetDeadline(&context);
    ExpectRefused("train " + request.ShortDebugString(),
                  Drain(stub_->Train(&context, request), v1::TrainRecord()), code, said);
  };
  for (const std::string& id : {std::string(), Long()}) {
    refuse([&](auto& request) { request.set_request_id(id); }, {"request_id"});
  }
  for (const int64_t value : {INT64_MIN, int64_t{-1}, int64_t{0}, INT64_MAX}) {
    const std::string number = std::to_string(value);
    refuse([&](auto& request) { request.set_steps(value); }, {"--steps=" + number, "1 to"});
    refuse([&](auto& request) { request.set_batch(value); }, {"--batch=" + number, "1 to"});
    refuse([&](auto& request) { request.set_seq(value); }, {"--seq"});
    if (value == 0) continue;
    refuse([&](auto& request) { request.set_accumulate(value); }, {"--accumulate=" + number});
  }
  refuse([](auto& request) { request.set_seq(65); }, {"--seq=65", "64"});
  for (const std::string& path : {std::string(), std::string("text.u16.bin"), WithNul(), Long(),
                                  Long("/"), std::string("/etc/passwd"), Data().root}) {
    refuse([&](auto& request) { request.set_data(path); }, {"--data="});
  }
  refuse([](auto& request) { request.set_data(Data().root + "/a\nb.u16.bin"); },
         {"--data=", "a\\nb"}, grpc::NOT_FOUND);
}

TEST_F(RpcRefusalTest, Generate) {
  v1::GenerateRequest good;
  good.set_name("rollout");
  good.add_prompts()->add_tokens(1);
  good.set_max_tokens(2);
  good.set_top_p(1);
  const auto refuse = [&](const Change<v1::GenerateRequest>& change, const Words& said) {
    for (const char* engine : {"rollout", "actor"}) {  // both ways of generating
      v1::GenerateRequest request = good;
      request.set_name(engine);
      request.set_request_id("refused-" + std::to_string(++requests_));
      change(request);
      grpc::ClientContext context;
      SetDeadline(&context);
      ExpectRefused("generate " + request.ShortDebugString(),
                    Drain(stub_->Generate(&context, request), v1::GenerateResponse()),
                    grpc::INVALID_ARGUMENT, said);
    }
  };
  for (const std::string& id : {std::string(), Long()}) {
    refuse([&](auto& request) { request.set_request_id(id); }, {"request_id"});
  }
  for (const int64_t value : {INT64_MIN, int64_t{-1}, int64_t{0}, INT64_MAX}) {
    refuse([&](auto& request) { request.set_max_tokens(value); },
           {"--max-tokens=" + std::to_string(value), "1 to"});
  }
  for (const double value : {kNan, kInf, -kInf, -0.5}) {
    refuse([&](auto& request) { request.set_temperature(value); }, {"--temperature="});
    refuse([&](auto& request) { request.set_top_p(value); }, {"--top-p=", "0 to 1"});
  }
  refuse([](auto& request) { request.set_top_p(1.5); }, {"--top-p=1.5", "0 to 1"});
  for (const int64_t value : {INT64_MIN, int64_t{-1}}) {
    refuse([&](auto& request) { request.set_top_k(value); }, {"--top-k=" + std::to_string(value)});
  }
  refuse([](auto& request) { request.clear_prompts(); }, {"--tokens-file=0 prompts", "1 to"});
  refuse([](auto& request) { request.add_prompts(); }, {"--tokens", "line 2"});
  refuse(
      [](auto& request) {
        for (int i = 0; i < 4096; ++i) request.add_prompts()->add_tokens(1);
      },
      {"4097 prompts", "1 to 4096"});
  for (const int token : {INT32_MIN, -1, 257, INT32_MAX}) {
    const std::string number = std::to_string(token);
    refuse([&](auto& request) { request.mutable_prompts(0)->set_tokens(0, token); },
           {"--tokens", number});
    refuse([&](auto& request) { request.add_stop_tokens(token); }, {"--stop-token", number});
  }
  refuse(
      [](auto& request) {
        for (int i = 0; i < 64; ++i) request.mutable_prompts(0)->add_tokens(1);
      },
      {"--tokens", "65", "64"});
}

TEST_F(RpcRefusalTest, Names_OfNothing_AreNotFound) {
  const auto unary = [&](const std::string& what, auto method, const auto& request) {
    grpc::ClientContext context;
    SetDeadline(&context);
    ExpectRefused(what, method(&context, request), grpc::NOT_FOUND, {"does not exist"});
  };
  for (const std::string& name : {std::string(), std::string("nobody"), WithNul(), Long(),
                                  std::string(kLong, '\x01'), std::string("actor\n")}) {
    const auto send = [&](auto method, auto request) {
      Refused(method, request, {[](auto&) {}}, {"engine '", "does not exist"}, grpc::NOT_FOUND);
    };
    v1::DescribeEngineRequest describe;
    describe.set_name(name);
    v1::Engine engine;
    unary(
        "describe",
        [&](auto* context, auto& request) {
          return stub_->DescribeEngine(context, request, &engine);
        },
        describe);
    v1::TraceEngineRequest trace;
    trace.set_name(name);
    v1::EngineTrace traced;
    unary(
        "trace",
        [&](auto* context, auto& request) { return stub_->TraceEngine(context, request, &traced); },
        trace);
    v1::DeleteEngineRequest deletion;
    deletion.set_name(name);
    send(&v1::Control::Stub::DeleteEngine, deletion);
    v1::RelayoutEngineRequest relayout;
    relayout.set_name(name);
    relayout.mutable_layout()->add_ranks(0);
    send(&v1::Control::Stub::RelayoutEngine, relayout);
    v1::SetEngineRequest set;
    set.set_name(name);
    set.set_learning_rate(1);
    send(&v1::Control::Stub::SetEngine, set);
    v1::ExportEngineRequest to;
    to.set_name(name);
    to.set_directory(Data().root + "/out");
    send(&v1::Control::Stub::ExportEngine, to);
    v1::SyncEngineRequest sync;
    sync.set_source(name);
    sync.set_destination("rollout");
    send(&v1::Control::Stub::SyncEngine, sync);
    sync.set_source("actor");
    sync.set_destination(name);
    send(&v1::Control::Stub::SyncEngine, sync);
    v1::TrainRequest train;
    train.set_request_id("refused-" + std::to_string(++requests_));
    train.set_name(name);
    unary(
        "train",
        [&](auto* context, auto& request) {
          return Drain(stub_->Train(context, request), v1::TrainRecord());
        },
        train);
    v1::GenerateRequest generate;
    generate.set_request_id("refused-" + std::to_string(++requests_));
    generate.set_name(name);
    unary(
        "generate",
        [&](auto* context, auto& request) {
          return Drain(stub_->Generate(context, request), v1::GenerateResponse());
        },
        generate);
  }
  for (const std::string& id :
       {std::string(), std::string("op-"), std::string("op-0"), std::string("op--1"),
        std::string("op-99999999999999999999"), std::string("op-1 "), WithNul(), Long("op-")}) {
    v1::GetOperationRequest get;
    get.set_id(id);
    v1::Operation operation;
    unary(
        "operation",
        [&](auto* context, auto& request) {
          return stub_->GetOperation(context, request, &operation);
        },
        get);
    unary(
        "watch",
        [&](auto* context, auto& request) {
          return Drain(stub_->WatchOperation(context, request), v1::Operation());
        },
        get);
    v1::CancelOperationRequest cancel;
    cancel.set_id(id);
    Refused(&v1::Control::Stub::CancelOperation, cancel, {[](auto&) {}},
            {"operation '", "does not exist"}, grpc::NOT_FOUND);
  }
}

TEST_F(RpcRefusalTest, RequestId_UsedAgain_IsShownInOneLine) {
  // Escaped when shown; a request that was refused has not used it up.
  const std::string id = std::string("i\0\n\x7f", 4) + std::string(124, '\x01');
  v1::SetEngineRequest set;
  set.set_request_id(id);
  set.set_name("actor");
  set.set_checks(v1::CHECK_LEVEL_BASIC);
  ASSERT_TRUE(Send(&v1::Control::Stub::SetEngine, set).ok());
  before_ = Snapshot();
  v1::DeleteEngineRequest deletion;
  deletion.set_request_id(id);
  deletion.set_name("actor");
  ExpectRefused("delete", Send(&v1::Control::Stub::DeleteEngine, deletion), grpc::ALREADY_EXISTS,
                {"request_id 'i\\x00\\n", "allowed"});
  v1::TrainRequest train;
  train.set_request_id("j\n" + std::string(126, '\x7f'));
  train.set_name("actor");
  train.set_data(Data().text.path);
  train.set_steps(1);
  train.set_batch(1);
  train.set_seq(kSeq);
  for (int time = 0; time < 2; ++time) {
    grpc::ClientContext context;
    SetDeadline(&context);
    const grpc::Status status = Drain(stub_->Train(&context, train), v1::TrainRecord());
    if (time == 0) {
      ASSERT_TRUE(status.ok()) << status.error_message();
      before_ = Snapshot();
      continue;
    }
    ExpectRefused("train", status, grpc::ALREADY_EXISTS,
                  {"request_id 'j\\n", "was used before, by operation op-", "allowed"});
  }
}

}  // namespace
}  // namespace regroup::harness
