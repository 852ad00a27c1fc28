#include "client/json.h"

#include <limits>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "regroup/v1/control.pb.h"

namespace regroup {
namespace {

std::vector<std::string> Keys(const Json& object) {
  std::vector<std::string> keys;
  for (const auto& [key, value] : object.items()) keys.push_back(key);
  return keys;
}

TEST(Json, EmptyMessage_HasEveryField) {
  const Json rank = ToJson(v1::Rank());
  EXPECT_EQ(ToLine(rank),
            R"({"rank":0,"node":"","pid":0,"state":"","engines":[],"error":"","rssBytes":0,)"
            R"("incarnation":"","ended":""})");
}

TEST(Json, Enum_LosesItsPrefix) {
  v1::Rank rank;
  rank.set_state(v1::RANK_STATE_READY);
  EXPECT_EQ(ToJson(rank)["state"], "READY");
  v1::EngineSpec spec;
  spec.set_dtype(v1::DTYPE_BF16);
  spec.set_role(v1::ROLE_INFER);
  spec.set_checks(v1::CHECK_LEVEL_FULL);
  EXPECT_EQ(ToJson(spec)["dtype"], "BF16");
  EXPECT_EQ(ToJson(spec)["role"], "INFER");
  EXPECT_EQ(ToJson(spec)["checks"], "FULL");
  v1::Output output;
  output.set_finish_reason(v1::FINISH_REASON_LENGTH);
  EXPECT_EQ(ToJson(output)["finishReason"], "LENGTH");
}

TEST(Json, Enum_OfANewerServer_IsItsNumber) {
  v1::Rank rank;
  rank.set_state(static_cast<v1::RankState>(77));
  EXPECT_EQ(ToJson(rank)["state"], "77");
}

TEST(Json, LargeIntegers_AreExactNumbers) {
  v1::EngineSpec spec;
  spec.set_seed(std::numeric_limits<uint64_t>::max());
  v1::Operation operation;
  operation.set_bytes_moved(std::numeric_limits<int64_t>::min());
  EXPECT_NE(ToLine(ToJson(spec)).find(R"("seed":18446744073709551615)"), std::string::npos);
  EXPECT_NE(ToLine(ToJson(operation)).find(R"("bytesMoved":-9223372036854775808)"),
            std::string::npos);
}

TEST(Json, NotFiniteDouble_IsNull) {
  v1::TrainRecord record;
  record.set_loss(std::numeric_limits<double>::quiet_NaN());
  record.set_grad_norm(std::numeric_limits<double>::infinity());
  record.set_seconds(0.25);
  EXPECT_TRUE(ToJson(record)["loss"].is_null());
  EXPECT_TRUE(ToJson(record)["gradNorm"].is_null());
  EXPECT_EQ(ToJson(record)["seconds"], 0.25);
}

TEST(Json, Duration_IsSeconds) {
  v1::EngineSpec spec;
  EXPECT_EQ(ToJson(spec)["timeout"], 0.0);
  EXPECT_TRUE(ToJson(spec)["timeout"].is_number());
  spec.mutable_timeout()->set_seconds(1);
  spec.mutable_timeout()->set_nanos(500000000);
  EXPECT_EQ(ToJson(spec)["timeout"], 1.5);
}

TEST(Json, Timestamp_IsUtcOrNothing) {
  v1::Rank rank;
  EXPECT_EQ(ToJson(rank)["ended"], "");
  rank.mutable_ended()->set_seconds(1769860800);
  rank.mutable_ended()->set_nanos(999999999);
  EXPECT_EQ(ToJson(rank)["ended"], "2026-01-31T12:00:00Z");
}

TEST(Json, SubMessages_AreObjectsSetOrNot) {
  v1::Engine engine;
  EXPECT_TRUE(ToJson(engine)["spec"]["layout"]["ranks"].is_array());
  v1::PartitionGroup* group = engine.add_groups();
  group->set_name("dp");
  group->add_ranks(2);
  const Json json = ToJson(engine);
  ASSERT_EQ(json["groups"].size(), 1);
  EXPECT_EQ(json["groups"][0]["ranks"], Json::array({2}));
}

TEST(Json, Floats_KeepTheirValue) {
  v1::Output output;
  output.add_logprobs(-0.1F);
  EXPECT_EQ(ToJson(output)["logprobs"][0].get<float>(), -0.1F);
}

TEST(Json, TextThatIsNotUtf8_IsReplaced) {
  EXPECT_EQ(ToLine(Json{{"a", "x\xff"}}), "{\"a\":\"x\xef\xbf\xbd\"}");
}

// What scripts read. A field that is renamed in the protocol breaks them, and this test.
TEST(Json, FieldNames_AreThoseThatScriptsRead) {
  const auto has = [](const google::protobuf::Message& message,
                      const std::vector<std::string>& names) {
    const Json json = ToJson(message);
    for (const std::string& name : names) {
      EXPECT_TRUE(json.contains(name)) << message.GetTypeName() << " " << name;
    }
  };
  has(v1::GetStatusResponse(), {"nodes", "ranks", "engines", "operations"});
  has(v1::Rank(), {"rank", "node", "pid", "state", "engines", "incarnation"});
  has(v1::Node(), {"node", "address", "ranks", "state"});
  has(v1::Engine(), {"name", "ranks", "role", "state", "generation", "step", "dataPosition",
                     "weightsVersion", "uid", "error", "groups", "memory"});
  has(v1::PartitionGroup(), {"name", "ranks", "parameters"});
  has(v1::RankMemory(), {"rank", "weightsBytes", "optimizerBytes", "buffersBytes", "peakBytes"});
  has(v1::TrainRecord(), {"step", "loss", "gradNorm", "tokens", "seconds", "skipped"});
  has(v1::Output(), {"tokens", "logprobs", "weightsVersion", "finishReason"});
  has(v1::Operation(),
      {"id", "kind", "engine", "phase", "done", "error", "seconds", "bytesMoved", "peakBytes"});
  EXPECT_EQ(Keys(ToJson(v1::PartitionGroup())),
            (std::vector<std::string>{"name", "ranks", "parameters"}));
}

}  // namespace
}  // namespace regroup
