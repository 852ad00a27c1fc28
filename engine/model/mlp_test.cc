#include "engine/model/mlp.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/rand.h>
#include <gtest/gtest.h>

#include "engine/group/comm_status.h"
#include "engine/model/test_models.h"

namespace regroup {
namespace {

TEST(MlpTest, Table_ThreeLayers_HasAUnitALayer) {
  const Mlp mlp({8, 16, 3, 4}, DType::kFp32);
  ASSERT_EQ(mlp.table().units().size(), 3u);
  ASSERT_EQ(mlp.table().parameters().size(), 6u);
  EXPECT_EQ(mlp.table().parameter(0).name, "layers.0.weight");
  EXPECT_EQ(mlp.table().parameter(0).shape, (std::vector<int64_t>{16, 8}));
  EXPECT_EQ(mlp.table().parameter(2).shape, (std::vector<int64_t>{16, 16}));
  EXPECT_EQ(mlp.table().parameter(4).shape, (std::vector<int64_t>{4, 16}));
  EXPECT_EQ(mlp.table().parameter(5).name, "layers.2.bias");
  EXPECT_EQ(mlp.table().parameter(5).shape, std::vector<int64_t>{4});
  EXPECT_FALSE(mlp.limits().is_language_model);
  EXPECT_EQ(mlp.limits().in_features, 8);
  EXPECT_EQ(mlp.limits().out_features, 4);
}

TEST(MlpTest, Table_OneLayer_GoesFromInToOut) {
  const Mlp mlp({17, 5, 1, 1}, DType::kFp32);
  ASSERT_EQ(mlp.table().parameters().size(), 2u);
  EXPECT_EQ(mlp.table().parameter(0).shape, (std::vector<int64_t>{1, 17}));
}

TEST(MlpTest, LossSum_TwoLayers_EqualsTheFormulaWithGradients) {
  const Mlp mlp({3, 5, 2, 2}, DType::kFp32);
  const NamedTensors weights = SmallWeights(mlp.table(), 1);
  LeafRunner runner(mlp.table(), weights, /*requires_grad=*/true);
  const Batch batch = {at::rand({4, 3}) * 10 - 5, at::rand({4, 2})};
  const at::Tensor loss = mlp.LossSum(runner, batch);
  loss.backward();

  // By hand, backwards too.
  const at::Tensor w0 = weights[0].second, b0 = weights[1].second, w1 = weights[2].second,
                   b1 = weights[3].second;
  const at::Tensor before = at::mm(batch.inputs, w0.t()) + b0;
  const at::Tensor h = before.clamp_min(0);
  const at::Tensor error = at::mm(h, w1.t()) + b1 - batch.targets;
  EXPECT_NEAR(loss.item<double>(), error.square().sum().item<double>(), 1e-4);
  const at::Tensor d_out = 2 * error;
  const at::Tensor d_h = at::mm(d_out, w1) * (before > 0);
  EXPECT_TRUE(runner.parameter(3).grad().allclose(d_out.sum(0), 1e-4, 1e-5));
  EXPECT_TRUE(runner.parameter(2).grad().allclose(at::mm(d_out.t(), h), 1e-4, 1e-5));
  EXPECT_TRUE(runner.parameter(1).grad().allclose(d_h.sum(0), 1e-4, 1e-5));
  EXPECT_TRUE(runner.parameter(0).grad().allclose(at::mm(d_h.t(), batch.inputs), 1e-4, 1e-5));
}

TEST(MlpTest, LossSum_NoRows_IsZeroWithZeroGradients) {
  const Mlp mlp({3, 5, 2, 2}, DType::kFp32);
  LeafRunner runner(mlp.table(), SmallWeights(mlp.table(), 1), /*requires_grad=*/true);
  const at::Tensor loss = mlp.LossSum(runner, {at::rand({0, 3}), at::rand({0, 2})});
  EXPECT_EQ(loss.item<double>(), 0);
  loss.backward();
  for (const Parameter& parameter : mlp.table().parameters()) {
    const at::Tensor gradient = runner.parameter(parameter.id).grad();
    ASSERT_TRUE(gradient.defined()) << parameter.name;
    EXPECT_EQ(gradient.abs().max().item<double>(), 0) << parameter.name;
  }
}

TEST(MlpTest, NextLogits_OfAModelWithoutTokens_Throws) {
  const Mlp mlp({3, 5, 2, 2}, DType::kFp32);
  EXPECT_THROW(mlp.MakeCache(4), StatusException);
}

TEST(MlpTest, ConfigFromSpec_AllKeysInAnyOrder_MakesTheConfig) {
  const auto text = MlpConfigFromSpec("out=4,in=8,layers=2,hidden=16");
  ASSERT_TRUE(text.ok()) << text.status();
  const auto config = ParseConfigFile("spec", *text);
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->model_type, "mlp");
  EXPECT_EQ(config->fields["in"], 8);
  EXPECT_EQ(config->fields["hidden"], 16);
  EXPECT_EQ(config->fields["layers"], 2);
  EXPECT_EQ(config->fields["out"], 4);
}

TEST(MlpTest, ConfigFromSpec_Malformed_NamesWhatIsWrong) {
  for (const auto& [spec, words] : std::vector<std::pair<std::string, std::string>>{
           {"", "\"\" is not known"},
           {"in=8,hidden=16,layers=2", "out is missing"},
           {"in=8,in=8,hidden=16,layers=2,out=4", "in is given twice"},
           {"in=8,hidden=16,layers=2,out=4,depth=3", "\"depth=3\" is not known"},
           {"in=8,hidden=16,layers=2,out=", "out = \"\""},
           {"in=8,hidden=16,layers=2,out", "out = \"\""},
           {"in=8,hidden=16,layers=2,out=4x", "out = \"4x\""},
           {"in=8,hidden=16,layers=2,out=-4", "out = \"-4\""},
           {"in=8,hidden=16,layers=2,out= 4", "out = \" 4\""},
           {"in=8,hidden=16,layers=2,out=99999999999999999999", "out = "},
           {"in=8,hidden=16,layers=2,out=4,", "\"\" is not known"},
       }) {
    const absl::Status status = MlpConfigFromSpec(spec).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << spec;
    EXPECT_NE(status.message().find(words), absl::string_view::npos) << status;
    EXPECT_NE(status.message().find("allowed: mlp:in="), absl::string_view::npos) << status;
  }
}

}  // namespace
}  // namespace regroup
