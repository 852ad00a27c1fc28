#include "daemon/control/validate.h"

#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/rpc_status.h"

namespace regroup {
namespace {

using ::testing::HasSubstr;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();

class ValidateTest : public ::testing::Test {
 protected:
  void SetUp() override {
    root_ = std::filesystem::canonical(::testing::TempDir()) / "validate";
    std::filesystem::create_directories(root_ / "model");
    std::ofstream(root_ / "text.u16.bin") << "x";
    limits_.ranks = 4;
    limits_.roots = *DataRoots::Make({root_.string()});

    create_.mutable_spec()->set_name("actor");
    create_.mutable_spec()->set_model("mlp:in=8,hidden=16,layers=2,out=4");
    create_.mutable_spec()->mutable_layout()->add_ranks(1);
    create_.mutable_spec()->mutable_layout()->add_ranks(2);
    create_.mutable_spec()->mutable_optimizer()->set_learning_rate(0.1);
    create_.mutable_spec()->mutable_optimizer()->set_beta1(0.9);
    create_.mutable_spec()->mutable_optimizer()->set_beta2(0.999);
    create_.mutable_spec()->mutable_optimizer()->set_eps(1e-8);
    train_.set_data((root_ / "text.u16.bin").string());
    train_.set_steps(1);
    train_.set_batch(1);
    generate_.set_max_tokens(4);
    generate_.set_top_p(1);
    generate_.add_prompts()->add_tokens(7);
  }
  void TearDown() override { std::filesystem::remove_all(root_); }

  // The error of a create that differs from a good one by `change`.
  absl::Status Create(const std::function<void(v1::EngineSpec&)>& change) {
    v1::CreateEngineRequest request = create_;
    change(*request.mutable_spec());
    return CheckCreate(request, limits_).status();
  }
  absl::Status Train(const std::function<void(v1::TrainRequest&)>& change) {
    v1::TrainRequest request = train_;
    change(request);
    return CheckTrain(request, limits_).status();
  }
  absl::Status Generate(const std::function<void(v1::GenerateRequest&)>& change) {
    v1::GenerateRequest request = generate_;
    change(request);
    return CheckGenerate(request);
  }

  std::filesystem::path root_;
  RequestLimits limits_;
  v1::CreateEngineRequest create_;
  v1::TrainRequest train_;
  v1::GenerateRequest generate_;
};

void ExpectInvalid(const absl::Status& status, const std::string& flag_and_value) {
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  EXPECT_THAT(status.message(), HasSubstr(flag_and_value));
  EXPECT_THAT(status.message(), HasSubstr("; allowed: "));
  ASSERT_TRUE(DetailOf(status).has_value());
  EXPECT_EQ(DetailOf(status)->reason(), v1::ERROR_REASON_INVALID_FIELD);
}

void ExpectNotAvailable(const absl::Status& status, const std::string& what) {
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented) << status;
  EXPECT_THAT(status.message(), HasSubstr("not available in this version: " + what));
  ASSERT_TRUE(DetailOf(status).has_value());
  EXPECT_EQ(DetailOf(status)->reason(), v1::ERROR_REASON_NOT_AVAILABLE);
}

TEST_F(ValidateTest, Create_Good_IsCompleted) {
  const absl::StatusOr<v1::EngineSpec> spec = CheckCreate(create_, limits_);
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->role(), v1::ROLE_TRAIN);
  EXPECT_EQ(spec->layout().dp(), 2);
  EXPECT_EQ(spec->layout().tp(), 1);
  EXPECT_EQ(spec->checks(), v1::CHECK_LEVEL_BASIC);
  EXPECT_EQ(spec->optimizer().name(), "adamw");
  EXPECT_EQ(TimeoutOf(*spec), absl::Seconds(30));
}

TEST_F(ValidateTest, Create_Names_FollowTheRule) {
  for (const std::string& name : {std::string(), std::string(".a"), std::string("a b"),
                                  std::string("a/b"), std::string(64, 'a'), std::string("é")}) {
    ExpectInvalid(Create([&](auto& spec) { spec.set_name(name); }), "NAME=");
  }
  for (const std::string& name : {std::string("0"), std::string("A-z_0.9"), std::string(63, 'a')}) {
    EXPECT_TRUE(Create([&](auto& spec) { spec.set_name(name); }).ok()) << name;
  }
}

TEST_F(ValidateTest, Create_Ranks_AreKnownDistinctAndCovered) {
  ExpectInvalid(Create([](auto& spec) { spec.mutable_layout()->clear_ranks(); }), "--ranks");
  ExpectInvalid(Create([](auto& spec) { spec.mutable_layout()->add_ranks(1); }), "rank 1 ");
  ExpectInvalid(Create([](auto& spec) { spec.mutable_layout()->add_ranks(-1); }), "--ranks");
  const absl::Status unknown = Create([](auto& spec) { spec.mutable_layout()->add_ranks(4); });
  EXPECT_EQ(unknown.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(unknown.message(), HasSubstr("rank 4 does not exist; allowed: 0 to 3"));
  ExpectInvalid(Create([](auto& spec) { spec.mutable_layout()->set_dp(3); }), "--dp=3");
  ExpectInvalid(Create([](auto& spec) { spec.mutable_layout()->set_tp(-1); }), "--tp=-1");
  ExpectNotAvailable(Create([](auto& spec) { spec.mutable_layout()->set_tp(2); }), "--tp=2");
  ExpectNotAvailable(Create([](auto& spec) { spec.mutable_layout()->set_ep(2); }), "--ep=2");
}

TEST_F(ValidateTest, Create_OptimizerNumbers_AreChecked) {
  for (const double lr : {kNan, kInf, -1e-3, 0.0}) {
    ExpectInvalid(Create([&](auto& spec) { spec.mutable_optimizer()->set_learning_rate(lr); }),
                  "--lr=");
  }
  for (const double beta : {kNan, -0.1, 1.0, kInf}) {
    ExpectInvalid(Create([&](auto& spec) { spec.mutable_optimizer()->set_beta1(beta); }),
                  "--beta1=");
    ExpectInvalid(Create([&](auto& spec) { spec.mutable_optimizer()->set_beta2(beta); }),
                  "--beta2=");
  }
  for (const double eps : {kNan, 0.0, -1e-8, kInf}) {
    ExpectInvalid(Create([&](auto& spec) { spec.mutable_optimizer()->set_eps(eps); }), "--eps=");
  }
  for (const double value : {kNan, -1.0, kInf}) {
    ExpectInvalid(Create([&](auto& spec) { spec.mutable_optimizer()->set_weight_decay(value); }),
                  "--weight-decay=");
    ExpectInvalid(Create([&](auto& spec) { spec.mutable_optimizer()->set_momentum(value); }),
                  "--momentum=");
    ExpectInvalid(Create([&](auto& spec) { spec.set_clip_norm(value); }), "--clip-norm=");
  }
  ExpectInvalid(Create([](auto& spec) { spec.mutable_optimizer()->set_momentum(0.9); }),
                "--momentum=0.9");
  ExpectInvalid(Create([](auto& spec) { spec.mutable_optimizer()->set_name("lion"); }),
                "--optimizer=lion");
  EXPECT_TRUE(Create([](auto& spec) {
                spec.mutable_optimizer()->set_name("sgd");
                spec.mutable_optimizer()->set_momentum(0.9);
                spec.mutable_optimizer()->set_eps(0);
              }).ok());
}

// 0 or infinite in fp32, or 1: another value than the one that was given.
TEST_F(ValidateTest, Create_OptimizerNumbers_FitFp32) {
  for (const double value : {1e-50, 1e39, 1e300, 5e-324}) {
    ExpectInvalid(Create([&](auto& spec) { spec.mutable_optimizer()->set_learning_rate(value); }),
                  "--lr=");
    ExpectInvalid(Create([&](auto& spec) { spec.mutable_optimizer()->set_eps(value); }), "--eps=");
    ExpectInvalid(Create([&](auto& spec) { spec.mutable_optimizer()->set_weight_decay(value); }),
                  "--weight-decay=");
    ExpectInvalid(Create([&](auto& spec) {
                    spec.mutable_optimizer()->set_name("sgd");
                    spec.mutable_optimizer()->set_momentum(value);
                  }),
                  "--momentum=");
    ExpectInvalid(Create([&](auto& spec) { spec.set_clip_norm(value); }), "--clip-norm=");
  }
  for (const double value : {1.2e-38, 1e-30, 3e38}) {
    EXPECT_TRUE(Create([&](auto& spec) {
                  spec.mutable_optimizer()->set_learning_rate(value);
                  spec.mutable_optimizer()->set_eps(value);
                  spec.mutable_optimizer()->set_weight_decay(value);
                  spec.set_clip_norm(value);
                }).ok())
        << value;
  }
  const double almost = 1 - 1e-9;
  ExpectInvalid(Create([&](auto& spec) { spec.mutable_optimizer()->set_beta1(almost); }),
                "--beta1=0.999999999");
  ExpectInvalid(Create([&](auto& spec) { spec.mutable_optimizer()->set_beta2(almost); }),
                "--beta2=0.999999999");
  EXPECT_TRUE(Create([&](auto& spec) { spec.mutable_optimizer()->set_beta2(1 - 1e-7); }).ok());
}

TEST_F(ValidateTest, Create_Adam_TakesWhatAdamWTakes) {
  EXPECT_TRUE(Create([](auto& spec) { spec.mutable_optimizer()->set_name("adam"); }).ok());
  ExpectInvalid(Create([](auto& spec) {
                  spec.mutable_optimizer()->set_name("adam");
                  spec.mutable_optimizer()->set_momentum(0.9);
                }),
                "not a parameter of adam;");
  ExpectInvalid(Create([](auto& spec) {
                  spec.mutable_optimizer()->set_name("adam");
                  spec.mutable_optimizer()->set_eps(0);
                }),
                "--eps=0");
}

TEST_F(ValidateTest, Create_Inference_NeedsNoOptimizerAndTakesNone) {
  EXPECT_TRUE(Create([](auto& spec) {
                spec.set_role(v1::ROLE_INFER);
                spec.clear_optimizer();
              }).ok());
  ExpectInvalid(Create([](auto& spec) { spec.set_role(v1::ROLE_INFER); }), "--lr=0.1");
  ExpectInvalid(Create([](auto& spec) {
                  spec.set_role(v1::ROLE_INFER);
                  spec.clear_optimizer();
                  spec.set_recompute(true);
                }),
                "--recompute=true");
}

TEST_F(ValidateTest, Create_OtherFields_AreChecked) {
  ExpectInvalid(Create([](auto& spec) { spec.set_role(static_cast<v1::Role>(9)); }), "--role=9");
  ExpectInvalid(Create([](auto& spec) { spec.set_dtype(static_cast<v1::DType>(9)); }), "--dtype=9");
  ExpectInvalid(Create([](auto& spec) { spec.set_device("tpu"); }), "--device=tpu");
  ExpectNotAvailable(Create([](auto& spec) { spec.set_device("cuda"); }), "--device=cuda");
  EXPECT_TRUE(Create([](auto& spec) { spec.set_recompute(true); }).ok());
  ExpectNotAvailable(Create([](auto& spec) { spec.add_shard_over("x"); }), "--shard-over");
  for (const int64_t seconds : {int64_t{0}, int64_t{-1}, int64_t{3601}, INT64_MAX}) {
    ExpectInvalid(Create([&](auto& spec) { spec.mutable_timeout()->set_seconds(seconds); }),
                  "--timeout=");
  }
  EXPECT_TRUE(Create([](auto& spec) { spec.mutable_timeout()->set_seconds(3600); }).ok());
  v1::CreateEngineRequest dry = create_;
  dry.set_dry_run(true);
  ExpectNotAvailable(CheckCreate(dry, limits_).status(), "--dry-run");
  ExpectInvalid(CheckRequestId(std::string(129, 'r')), "request_id=");
  ExpectInvalid(CheckRequestId(""), "request_id=");
  EXPECT_TRUE(CheckRequestId("r").ok());
}

TEST_F(ValidateTest, Create_Model_LiesUnderARoot) {
  const std::string model = (root_ / "model").string();
  v1::CreateEngineRequest request = create_;
  request.mutable_spec()->set_model("random:" + model + "/../model");
  EXPECT_EQ(CheckCreate(request, limits_)->model(), "random:" + model);
  ExpectInvalid(Create([](auto& spec) { spec.set_model("/etc"); }), "--model=/etc");
  ExpectInvalid(Create([](auto& spec) { spec.set_model("random:/etc"); }), "--model=random:/etc");
  ExpectInvalid(Create([](auto& spec) { spec.set_model("model"); }), "--model=model");
  ExpectInvalid(Create([](auto& spec) { spec.clear_model(); }), "--model=");
  EXPECT_EQ(Create([&](auto& spec) { spec.set_model(model + "x"); }).code(),
            absl::StatusCode::kNotFound);
  limits_.roots = DataRoots();
  EXPECT_TRUE(Create([](auto& spec) {}).ok());
  ExpectInvalid(Create([&](auto& spec) { spec.set_model(model); }), "--model=");
}

TEST_F(ValidateTest, Relayout_Fields_AreChecked) {
  v1::RelayoutEngineRequest good;
  good.set_name("actor");
  good.mutable_layout()->add_ranks(3);
  const auto check = [&](const std::function<void(v1::RelayoutEngineRequest&)>& change) {
    v1::RelayoutEngineRequest request = good;
    change(request);
    return CheckRelayout(request, limits_).status();
  };
  EXPECT_EQ(CheckRelayout(good, limits_)->staging_bytes(), 64 << 20);
  EXPECT_EQ(CheckRelayout(good, limits_)->layout().dp(), 1);
  ExpectNotAvailable(check([](auto& request) { request.set_dry_run(true); }), "--dry-run");
  ExpectNotAvailable(check([](auto& request) { request.set_in_place(true); }), "--in-place");
  ExpectInvalid(check([](auto& request) { request.set_staging_bytes(-1); }), "--staging-mb=-1");
  ExpectInvalid(check([](auto& request) { request.set_expected_generation(-1); }),
                "--if-generation=-1");
  ExpectInvalid(check([](auto& request) { request.clear_layout(); }), "--ranks");
}

TEST_F(ValidateTest, Train_Numbers_AreInRange) {
  EXPECT_TRUE(Train([](auto&) {}).ok());
  for (const int64_t steps : {int64_t{0}, int64_t{-1}, int64_t{1000000001}}) {
    ExpectInvalid(Train([&](auto& request) { request.set_steps(steps); }),
                  absl::StrCat("--steps=", steps));
  }
  for (const int64_t batch : {0, -1, 65537}) {
    ExpectInvalid(Train([&](auto& request) { request.set_batch(batch); }),
                  absl::StrCat("--batch=", batch));
  }
  for (const int64_t seq : {-1, 1000001}) {
    ExpectInvalid(Train([&](auto& request) { request.set_seq(seq); }), absl::StrCat("--seq=", seq));
  }
  ExpectInvalid(Train([](auto& request) { request.set_accumulate(-1); }), "--accumulate=-1");
  ExpectInvalid(Train([](auto& request) { request.set_accumulate(request.batch() + 1); }),
                "is more than the rows of --batch=");
  EXPECT_TRUE(Train([](auto& request) { request.set_accumulate(request.batch()); }).ok());
  ExpectInvalid(Train([](auto& request) { request.set_data("text.u16.bin"); }),
                "--data=text.u16.bin");
  ExpectInvalid(Train([](auto& request) { request.set_data("/dev/zero"); }), "--data=/dev/zero");
}

TEST_F(ValidateTest, Generate_Fields_AreChecked) {
  EXPECT_TRUE(Generate([](auto&) {}).ok());
  for (const int64_t tokens : {0, -1}) {
    ExpectInvalid(Generate([&](auto& request) { request.set_max_tokens(tokens); }),
                  "--max-tokens=");
  }
  for (const double value : {kNan, kInf, -0.5}) {
    ExpectInvalid(Generate([&](auto& request) { request.set_temperature(value); }),
                  "--temperature=");
    ExpectInvalid(Generate([&](auto& request) { request.set_top_p(value); }), "--top-p=");
  }
  ExpectInvalid(Generate([](auto& request) { request.set_top_p(1.5); }), "--top-p=1.5");
  ExpectInvalid(Generate([](auto& request) { request.set_top_k(-1); }), "--top-k=-1");
  ExpectInvalid(Generate([](auto& request) { request.clear_prompts(); }),
                "--tokens-file=0 prompts");
  ExpectInvalid(Generate([](auto& request) { request.add_prompts(); }),
                "(or line 2 of --tokens-file) is empty");
  ExpectInvalid(Generate([](auto& request) { request.add_prompts()->add_tokens(-3); }),
                "--tokens=-3");
  ExpectInvalid(Generate([](auto& request) { request.add_stop_tokens(-3); }), "--stop-token=-3");
  ExpectInvalid(Generate([](auto& request) {
                  for (int i = 0; i < 4096; ++i) request.add_prompts()->add_tokens(1);
                }),
                "4097 prompts");
}

TEST_F(ValidateTest, Export_Directory_LiesUnderARoot) {
  v1::ExportEngineRequest request;
  request.set_directory((root_ / "out").string());
  EXPECT_EQ(CheckExport(request, limits_)->directory(), (root_ / "out").string());
  request.set_directory("/tmp/../etc/out");
  ExpectInvalid(CheckExport(request, limits_).status(), "DIR=/tmp/../etc/out");
}

TEST_F(ValidateTest, Set_Values_AreChecked) {
  const auto set = [](const std::function<void(v1::SetEngineRequest&)>& change,
                      v1::Role role = v1::ROLE_TRAIN) {
    v1::SetEngineRequest request;
    change(request);
    return CheckSet(request, role);
  };
  ExpectInvalid(set([](auto& request) {}), "at least one of --checks, --timeout, --lr");
  for (const double value : {0.0, -1.0, kNan, kInf, 1e-50, 1e39}) {
    ExpectInvalid(set([&](auto& request) { request.set_learning_rate(value); }), "--lr=");
  }
  ExpectInvalid(set([](auto& request) { request.set_checks(static_cast<v1::CheckLevel>(9)); }),
                "--checks=9");
  ExpectInvalid(set([](auto& request) { request.mutable_timeout(); }), "--timeout=0s");
  ExpectInvalid(set([](auto& request) {
                  request.mutable_timeout()->set_seconds(30);
                  request.mutable_timeout()->set_nanos(-2000000000);
                }),
                "--timeout=30s -2000000000ns is");
  ExpectInvalid(set([](auto& request) { request.mutable_timeout()->set_seconds(3601); }),
                "--timeout=3601s");
  ExpectInvalid(set([](auto& request) { request.set_learning_rate(0.1); }, v1::ROLE_INFER),
                "--lr=0.1");
  EXPECT_TRUE(
      set([](auto& request) { request.set_checks(v1::CHECK_LEVEL_FULL); }, v1::ROLE_INFER).ok());
  EXPECT_TRUE(set([](auto& request) {
                request.set_learning_rate(0.1);
                request.mutable_timeout()->set_seconds(1);
              }).ok());
}

TEST_F(ValidateTest, Sync_SameEngine_IsRefused) {
  v1::SyncEngineRequest request;
  request.set_source("a");
  request.set_destination("a");
  ExpectInvalid(CheckSync(request), "DST=a");
}

}  // namespace
}  // namespace regroup
