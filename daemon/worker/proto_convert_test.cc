#include "daemon/worker/proto_convert.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <string>

#include "engine/group/comm_status.h"
#include "proto/rpc_status.h"

namespace regroup {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

v1::EngineSpec GoodSpec() {
  v1::EngineSpec spec;
  spec.set_name("actor");
  spec.set_model("mlp:in=8,hidden=16,layers=2,out=4");
  spec.set_role(v1::ROLE_TRAIN);
  spec.mutable_layout()->add_ranks(2);
  spec.mutable_layout()->add_ranks(1);
  spec.mutable_optimizer()->set_name("sgd");
  spec.mutable_optimizer()->set_learning_rate(0.1);
  spec.mutable_optimizer()->set_momentum(0.9);
  return spec;
}

TEST(ProtoConvertTest, Spec_TakesEveryField) {
  v1::EngineSpec proto = GoodSpec();
  proto.set_dtype(v1::DTYPE_BF16);
  proto.set_clip_norm(0.5);
  proto.set_seed(11);
  proto.set_checks(v1::CHECK_LEVEL_FULL);
  proto.mutable_timeout()->set_seconds(2);
  proto.mutable_timeout()->set_nanos(500000000);
  const auto spec = SpecFromProto(proto, 42);
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->name, "actor");
  EXPECT_EQ(spec->uid, 42u);
  EXPECT_EQ(spec->role, Role::kTrain);
  EXPECT_EQ(spec->dtype, DType::kBf16);
  EXPECT_THAT(spec->layout.ranks, ElementsAre(2, 1));
  EXPECT_EQ(spec->layout.dp, 2);
  EXPECT_EQ(spec->layout.placement, Placement::kShard);
  EXPECT_EQ(spec->optimizer.kind, OptimizerKind::kSgd);
  EXPECT_EQ(spec->optimizer.momentum, 0.9);
  EXPECT_EQ(spec->optimizer.num_moments(), 1);
  EXPECT_EQ(spec->clip_norm, 0.5);
  EXPECT_EQ(spec->seed, 11u);
  EXPECT_EQ(spec->checks, CheckLevel::kFull);
  EXPECT_EQ(spec->timeout, absl::Milliseconds(2500));
}

TEST(ProtoConvertTest, Spec_WhatIsNotGiven_HasDefaults) {
  v1::EngineSpec proto = GoodSpec();
  proto.set_role(v1::ROLE_INFER);
  proto.clear_optimizer();
  const auto spec = SpecFromProto(proto, 1);
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_FALSE(spec->dtype.has_value());
  EXPECT_EQ(spec->layout.placement, Placement::kReplicate);
  EXPECT_EQ(spec->checks, CheckLevel::kBasic);
  EXPECT_EQ(spec->timeout, absl::Seconds(30));
}

TEST(ProtoConvertTest, Spec_WrongFields_AreNamed) {
  const auto message = [](const std::function<void(v1::EngineSpec*)>& change) {
    v1::EngineSpec proto = GoodSpec();
    change(&proto);
    return std::string(SpecFromProto(proto, 1).status().message());
  };
  EXPECT_THAT(message([](auto* s) { s->set_role(v1::ROLE_UNSPECIFIED); }), HasSubstr("role 0"));
  EXPECT_THAT(message([](auto* s) { s->set_dtype(static_cast<v1::DType>(9)); }),
              HasSubstr("dtype 9"));
  EXPECT_THAT(message([](auto* s) { s->mutable_optimizer()->set_name("lion"); }),
              HasSubstr("optimizer \"lion\"; allowed: sgd, adam, adamw"));
  EXPECT_THAT(message([](auto* s) { s->mutable_optimizer()->set_learning_rate(-1); }),
              HasSubstr("learning rate -1"));
  EXPECT_THAT(message([](auto* s) {
                s->mutable_optimizer()->set_eps(std::numeric_limits<double>::quiet_NaN());
              }),
              HasSubstr("eps nan"));
  EXPECT_THAT(message([](auto* s) { s->set_clip_norm(-2); }), HasSubstr("clip norm -2"));
  EXPECT_THAT(message([](auto* s) { s->mutable_timeout()->set_seconds(-3); }),
              HasSubstr("timeout -3s"));
  EXPECT_THAT(message([](auto* s) { s->mutable_layout()->add_ranks(2); }), HasSubstr("rank 2"));
  EXPECT_THAT(message([](auto* s) { s->set_device("cuda"); }),
              HasSubstr("not available in this version: device cuda"));
  EXPECT_THAT(message([](auto* s) { s->add_shard_over("x"); }),
              HasSubstr("not available in this version: shard_over"));
}

TEST(ProtoConvertTest, Spec_ChecksOfANewerVersion_AreRefused) {
  v1::EngineSpec proto = GoodSpec();
  proto.set_checks(static_cast<v1::CheckLevel>(99));
  const absl::Status status = SpecFromProto(proto, 1).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(), "checks 99; allowed: off, basic, full");
}

TEST(ProtoConvertTest, ErrorDetail_ComesFromThePayloadThenTheCode) {
  const auto reason = [](const absl::Status& status) {
    return DetailOf(WithErrorDetail(status, "actor", "train_step"))->reason();
  };
  EXPECT_EQ(reason(WithReason(absl::AbortedError("x"), "RANKS_DISAGREE")),
            v1::ERROR_REASON_RANKS_DISAGREE);
  EXPECT_EQ(reason(WithReason(absl::UnavailableError("x"), "RANK_LOST")),
            v1::ERROR_REASON_RANK_LOST);
  EXPECT_EQ(reason(WithReason(absl::CancelledError("x"), "CANCELLED")), v1::ERROR_REASON_CANCELLED);
  EXPECT_EQ(reason(WithReason(absl::ResourceExhaustedError("x"), "MEMORY")),
            v1::ERROR_REASON_MEMORY);
  EXPECT_EQ(reason(WithReason(absl::DataLossError("x"), "DATA")), v1::ERROR_REASON_DATA);
  EXPECT_EQ(reason(absl::DeadlineExceededError("x")), v1::ERROR_REASON_TIMEOUT);
  EXPECT_EQ(reason(absl::InvalidArgumentError("x")), v1::ERROR_REASON_INVALID_FIELD);
  EXPECT_EQ(reason(absl::UnimplementedError("x")), v1::ERROR_REASON_NOT_AVAILABLE);
  EXPECT_EQ(reason(absl::InternalError("x")), v1::ERROR_REASON_UNSPECIFIED);

  const absl::Status status = WithErrorDetail(absl::InternalError("why"), "actor", "train_step");
  EXPECT_EQ(status.message(), "why");
  EXPECT_EQ(DetailOf(status)->engine(), "actor");
  EXPECT_EQ(DetailOf(status)->phase(), "train_step");
  EXPECT_EQ(WithErrorDetail(status, "other", "other"), status);
  EXPECT_TRUE(WithErrorDetail(absl::OkStatus(), "actor", "x").ok());
}

TEST(ProtoConvertTest, ErrorDetail_BrokenEngine_IsAddedToAnyDetail) {
  const absl::Status plain = WithErrorDetail(absl::AbortedError("x"), "actor", "step", true);
  EXPECT_TRUE(DetailOf(plain)->engine_broken());
  const absl::Status known = WithErrorDetail(absl::AbortedError("x"), "actor", "step");
  EXPECT_FALSE(DetailOf(known)->engine_broken());
  const absl::Status broken = WithErrorDetail(known, "other", "export", true);
  EXPECT_TRUE(DetailOf(broken)->engine_broken());
  EXPECT_EQ(DetailOf(broken)->engine(), "actor");
}

TEST(ProtoConvertTest, Pass_NamesUnitsAndParameters) {
  ParamTable table;
  table.AddUnit("layers.0");
  table.AddParameter("layers.0.weight", {4, 2});
  table.AddParameter("layers.0.bias", {4});
  TraceSnapshot trace;
  trace.kind = "train";
  trace.state = TraceState::kAgreed;
  trace.prefetches = 3;
  trace.entries = {{TraceOp::kGather, false, 0, 48}, {TraceOp::kReduce, true, 0, 48}};
  const v1::PassTrace pass = PassToProto(table, trace);
  EXPECT_EQ(pass.kind(), "train");
  EXPECT_EQ(pass.state(), "AGREED");
  EXPECT_EQ(pass.prefetches(), 3);
  ASSERT_EQ(pass.entries_size(), 2);
  EXPECT_EQ(pass.entries(1).position(), 1);
  EXPECT_EQ(pass.entries(1).phase(), "backward");
  EXPECT_EQ(pass.entries(1).operation(), "reduce");
  EXPECT_EQ(pass.entries(1).unit(), "layers.0");
  EXPECT_THAT(pass.entries(1).parameter_ids(), ElementsAre(0, 1));
  EXPECT_EQ(pass.entries(1).bytes(), 48);
}

}  // namespace
}  // namespace regroup
