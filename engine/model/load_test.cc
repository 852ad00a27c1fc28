#include "engine/model/load.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "engine/model/init.h"
#include "engine/model/test_models.h"

namespace regroup {
namespace {

void ExpectStatus(const absl::Status& status, absl::StatusCode code,
                  const std::vector<std::string>& words) {
  EXPECT_EQ(status.code(), code) << status;
  for (const std::string& word : words) {
    EXPECT_TRUE(absl::StrContains(status.message(), word)) << word << " in " << status;
  }
}

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
constexpr auto kUnimplemented = absl::StatusCode::kUnimplemented;

// A folder with a small llama.
class LoadTest : public testing::Test {
 protected:
  void WriteConfig(const std::map<std::string, std::string>& changes = {}) {
    const std::string config = SmallLlamaConfig(changes);
    folder_.Write("config.json", config);
    model_ = ModelOf(config);
    weights_ = SmallWeights(model_->table(), 5);
  }
  void WriteWeights() { folder_.Write("model.safetensors", SafetensorsBytes(weights_)); }

  at::Tensor& Weight(const std::string& name) {
    for (auto& [known, value] : weights_) {
      if (known == name) return value;
    }
    abort();
  }
  void Remove(const std::string& name) {
    for (size_t i = 0; i < weights_.size(); ++i) {
      if (weights_[i].first == name) weights_.erase(weights_.begin() + static_cast<int64_t>(i));
    }
  }

  // Two files and an index; tensor i lies in file i % 2.
  void WriteShards() {
    NamedTensors parts[2];
    nlohmann::json map;
    for (size_t i = 0; i < weights_.size(); ++i) {
      parts[i % 2].push_back(weights_[i]);
      map[weights_[i].first] = kShards[i % 2];
    }
    for (int s : {0, 1}) folder_.Write(kShards[s], SafetensorsBytes(parts[s]));
    index_ = {{"metadata", {{"total_size", 1}}}, {"weight_map", map}};
    WriteIndex();
  }
  void WriteIndex() { folder_.Write("model.safetensors.index.json", index_.dump()); }

  absl::StatusOr<LoadedModel> Load(std::optional<DType> dtype = std::nullopt) {
    return LoadModel(folder_.path(), dtype, 0);
  }

  // Every tensor of `loaded`, in pieces of 1,000 elements, bit for bit.
  void ExpectHolds(LoadedModel& loaded, const NamedTensors& expected) {
    for (const auto& [name, value] : expected) {
      const Parameter* parameter = loaded.model->table().Find(name);
      ASSERT_NE(parameter, nullptr) << name;
      const at::Tensor flat = value.to(at::kFloat).reshape({-1});
      for (int64_t begin = 0; begin < parameter->numel; begin += 1000) {
        const int64_t end = std::min(begin + 1000, parameter->numel);
        const auto piece = loaded.weights->Read(parameter->id, begin, end, DType::kFp32);
        ASSERT_TRUE(piece.ok()) << piece.status();
        EXPECT_EQ(piece->scalar_type(), at::kFloat);
        EXPECT_TRUE(piece->equal(flat.narrow(0, begin, end - begin))) << name << " at " << begin;
      }
    }
  }

  static constexpr const char* kShards[2] = {"model-00001-of-00002.safetensors",
                                             "model-00002-of-00002.safetensors"};
  TempFolder folder_;
  std::unique_ptr<Model> model_;
  NamedTensors weights_;
  nlohmann::json index_;
};

TEST_F(LoadTest, Load_SingleFile_ReadsTheBitsOfTheFile) {
  WriteConfig();
  WriteWeights();
  auto loaded = Load();
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_EQ(loaded->model->table().Describe(), model_->table().Describe());
  EXPECT_EQ(loaded->config_json, folder_.Read("config.json"));
  ExpectHolds(*loaded, weights_);
  EXPECT_EQ(loaded->weights->Read(0, 7, 7, DType::kFp32)->numel(), 0);
}

TEST_F(LoadTest, Load_OneFileOfAnotherName_IsTaken) {
  WriteConfig();
  folder_.Write("weights.safetensors", SafetensorsBytes(weights_));
  auto loaded = Load();
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  ExpectHolds(*loaded, weights_);
}

TEST_F(LoadTest, Load_IndexedFiles_ReadsTheSameBits) {
  WriteConfig();
  WriteShards();
  auto loaded = Load();
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  ExpectHolds(*loaded, weights_);
}

TEST_F(LoadTest, Load_MissingTensor_IsRefusedByName) {
  WriteConfig();
  Remove("model.layers.1.mlp.up_proj.weight");
  WriteWeights();
  ExpectStatus(Load().status(), kInvalid,
               {folder_.path(), "1 missing tensor: model.layers.1.mlp.up_proj.weight"});
}

TEST_F(LoadTest, Load_EveryKindOfFault_IsListedInOneError) {
  WriteConfig();
  Remove("model.layers.0.mlp.up_proj.weight");
  Remove("model.layers.1.mlp.up_proj.weight");
  Remove("lm_head.weight");
  weights_.emplace_back("model.layers.1.mlp.upproj.weight", at::randn({160, 64}));
  Weight("model.layers.1.mlp.down_proj.weight") = at::randn({256, 64});
  Weight("model.norm.weight") = at::randn({64}, at::kDouble);
  WriteWeights();
  ExpectStatus(Load().status(), kInvalid,
               {"3 missing tensors: model.layers.{0-1}.mlp.up_proj.weight, lm_head.weight",
                "1 unexpected tensor: model.layers.1.mlp.upproj.weight",
                "1 mis-shaped tensor: model.layers.1.mlp.down_proj.weight is [256, 64], must be "
                "[64, 160]",
                "model.norm.weight is F64"});
}

TEST_F(LoadTest, Load_ManyForeignTensors_GivesAnErrorOfBoundedLength) {
  WriteConfig();
  for (int i = 0; i < 2000; ++i) {
    weights_.emplace_back(absl::StrCat("foreign", i, std::string(1000, 'x')), at::randn({1}));
  }
  WriteWeights();
  const absl::Status status = Load().status();
  ExpectStatus(status, kInvalid, {"2000 unexpected tensors: foreign0", "more"});
  EXPECT_LT(status.message().size(), 4000u);
}

TEST_F(LoadTest, Load_HarmlessExtraTensors_AreAccepted) {
  WriteConfig({{"tie_word_embeddings", "true"}});
  weights_.emplace_back("lm_head.weight", Weight("model.embed_tokens.weight").clone());
  weights_.emplace_back("model.layers.0.self_attn.rotary_emb.inv_freq", at::randn({8}));
  WriteWeights();
  auto loaded = Load();
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_EQ(loaded->model->table().Find("lm_head.weight"), nullptr);
}

TEST_F(LoadTest, Load_TiedHeadThatDiffers_IsRefused) {
  WriteConfig({{"tie_word_embeddings", "true"}});
  weights_.emplace_back("lm_head.weight", Weight("model.embed_tokens.weight") + 1);
  WriteWeights();
  ExpectStatus(Load().status(), kInvalid,
               {"lm_head.weight differs from model.embed_tokens.weight"});
}

TEST_F(LoadTest, Load_UntiedWithoutHead_IsRefused) {
  WriteConfig();
  Remove("lm_head.weight");
  WriteWeights();
  ExpectStatus(Load().status(), kInvalid, {"1 missing tensor: lm_head.weight"});
}

TEST_F(LoadTest, Load_Bf16Files_MakeABf16EngineOrAreConverted) {
  WriteConfig();  // says float32: the files decide
  for (auto& entry : weights_) entry.second = entry.second.to(at::kBFloat16);
  WriteWeights();
  auto loaded = Load();
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_EQ(loaded->model->table().dtype(), DType::kBf16);
  ExpectHolds(*loaded, weights_);
  const at::Tensor kept = loaded->weights->Read(0, 0, 100, DType::kBf16).value();
  EXPECT_EQ(kept.scalar_type(), at::kBFloat16);
  EXPECT_TRUE(kept.equal(weights_[0].second.reshape({-1}).slice(0, 0, 100)));
  loaded = Load(DType::kFp32);
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_EQ(loaded->model->table().dtype(), DType::kFp32);
  ExpectHolds(*loaded, weights_);
}

TEST_F(LoadTest, Load_Fp16Files_MakeAnFp16EngineOrAreConverted) {
  WriteConfig();
  for (auto& entry : weights_) entry.second = entry.second.to(at::kHalf);
  WriteWeights();
  EXPECT_EQ(Load()->model->table().dtype(), DType::kFp16);
  for (const DType dtype : {DType::kFp32, DType::kBf16}) {
    auto loaded = Load(dtype);
    ASSERT_TRUE(loaded.ok()) << loaded.status();
    EXPECT_EQ(loaded->model->table().dtype(), dtype);
    ExpectHolds(*loaded, weights_);
  }
}

TEST_F(LoadTest, Load_LargeHalfPrecisionTensor_IsConvertedWhole) {
  // More than one piece of the conversion.
  folder_.Write("config.json",
                R"({"model_type": "mlp", "in": 1500, "hidden": 1, "layers": 1, "out": 1000})");
  NamedTensors weights = {{"layers.0.weight", at::randn({1000, 1500}).to(at::kBFloat16)},
                          {"layers.0.bias", at::randn({1000}).to(at::kBFloat16)}};
  folder_.Write("model.safetensors", SafetensorsBytes(weights));
  auto loaded = Load(DType::kFp32);
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_TRUE(loaded->weights->Read(0, 0, 1500000, DType::kFp32)
                  ->equal(weights[0].second.to(at::kFloat).reshape({-1})));
  EXPECT_TRUE(
      loaded->weights->Read(0, 100001, 1499999, DType::kFp32)
          ->equal(weights[0].second.to(at::kFloat).reshape({-1}).slice(0, 100001, 1499999)));
}

TEST_F(LoadTest, Load_Fp32FilesWithAnotherConfigDType_FollowTheFiles) {
  WriteConfig({{"torch_dtype", "\"bfloat16\""}});
  WriteWeights();
  auto loaded = Load();
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_EQ(loaded->model->table().dtype(), DType::kFp32);
  ExpectHolds(*loaded, weights_);
}

TEST_F(LoadTest, Load_MixedDTypes_AreRefusedByNameOrConverted) {
  WriteConfig();
  for (auto& entry : weights_) {
    if (entry.second.dim() > 1) entry.second = entry.second.to(at::kBFloat16);
  }
  WriteWeights();
  ExpectStatus(Load().status(), kUnimplemented, {"bf16 and fp32", "--dtype=fp32"});
  auto loaded = Load(DType::kFp32);
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  ExpectHolds(*loaded, weights_);
}

// The source has every bit for the master copy; the weights are its rounding.
TEST_F(LoadTest, Load_Fp32FilesAsBf16_ReadsInFullAndRounded) {
  WriteConfig();
  WriteWeights();
  auto loaded = Load(DType::kBf16);
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_EQ(loaded->model->table().dtype(), DType::kBf16);
  ExpectHolds(*loaded, weights_);
  const at::Tensor flat = weights_[0].second.reshape({-1}).slice(0, 3, 1003);
  EXPECT_FALSE(flat.equal(flat.to(at::kBFloat16).to(at::kFloat)));
  EXPECT_TRUE(
      loaded->weights->Read(0, 3, 1003, DType::kBf16).value().equal(flat.to(at::kBFloat16)));
}

TEST_F(LoadTest, Load_NameInTwoShards_IsRefusedAsDuplicate) {
  WriteConfig();
  WriteShards();
  NamedTensors second;
  for (size_t i = 1; i < weights_.size(); i += 2) second.push_back(weights_[i]);
  second.push_back(weights_[0]);
  folder_.Write(kShards[1], SafetensorsBytes(second));
  ExpectStatus(Load().status(), kInvalid, {"duplicate tensor", weights_[0].first, kShards[1]});
}

TEST_F(LoadTest, Load_IndexThatDisagreesWithItsFiles_IsRefused) {
  WriteConfig();
  WriteShards();
  const std::string first = weights_[0].first;
  index_["weight_map"][first] = kShards[1];
  WriteIndex();
  ExpectStatus(Load().status(), kInvalid, {first, kShards[1], "does not hold it"});
  index_["weight_map"].erase(first);
  WriteIndex();
  ExpectStatus(Load().status(), kInvalid, {"does not name tensor", first});
  index_["weight_map"][first] = kShards[0];
  index_["weight_map"]["nowhere"] = kShards[0];
  WriteIndex();
  ExpectStatus(Load().status(), kInvalid, {"nowhere", "does not hold it"});
}

TEST_F(LoadTest, Load_IndexThatLeavesTheFolder_IsRefused) {
  WriteConfig();
  WriteShards();
  for (const char* name :
       {"../model.safetensors", "/etc/x.safetensors", "a/b.safetensors", "config.json", ""}) {
    index_["weight_map"][weights_[0].first] = name;
    WriteIndex();
    ExpectStatus(Load().status(), kInvalid, {"weight_map of", "in the same folder"});
  }
  index_["weight_map"][weights_[0].first] = 3;
  WriteIndex();
  ExpectStatus(Load().status(), kInvalid, {"= 3"});
  index_["weight_map"][weights_[0].first] = "gone.safetensors";
  WriteIndex();
  ExpectStatus(Load().status(), absl::StatusCode::kNotFound, {"gone.safetensors"});
  folder_.Write("model.safetensors.index.json", "{}");
  ExpectStatus(Load().status(), kInvalid, {"weight_map must be an object"});
}

TEST_F(LoadTest, Load_FolderThatSaysTwoThings_IsRefused) {
  WriteConfig();
  WriteShards();
  WriteWeights();
  ExpectStatus(Load().status(), kInvalid, {"both model.safetensors and"});
}

TEST_F(LoadTest, Load_ShardsWithoutIndex_AreRefused) {
  WriteConfig();
  folder_.Write(kShards[0], "");
  folder_.Write(kShards[1], "");
  ExpectStatus(Load().status(), kInvalid, {"no model.safetensors.index.json"});
}

TEST_F(LoadTest, Load_PytorchFiles_AreRefusedByName) {
  WriteConfig();
  folder_.Write("pytorch_model.bin", "x");
  ExpectStatus(Load().status(), kInvalid, {"pytorch_model.bin", ".safetensors"});
}

TEST_F(LoadTest, Load_NothingThere_ReturnsNotFound) {
  ExpectStatus(Load().status(), absl::StatusCode::kNotFound, {"config.json"});
  WriteConfig();
  ExpectStatus(Load().status(), absl::StatusCode::kNotFound, {"no .safetensors"});
  ExpectStatus(LoadModel(folder_.File("none"), {}, 0).status(), absl::StatusCode::kNotFound,
               {"--model=", "none", "allowed: a folder"});
  ExpectStatus(LoadModel(folder_.File("config.json"), {}, 0).status(), absl::StatusCode::kNotFound,
               {"is not a folder"});
  ExpectStatus(LoadModel("", {}, 0).status(), kInvalid, {"--model is empty"});
  ExpectStatus(LoadModel("random:" + folder_.File("none"), {}, 0).status(),
               absl::StatusCode::kNotFound, {"none"});
}

TEST_F(LoadTest, Read_AfterTheFileChanged_ReturnsDataLoss) {
  WriteConfig();
  WriteWeights();
  auto loaded = Load();
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  folder_.Write("model.safetensors", "short");
  ExpectStatus(loaded->weights->Read(0, 0, 10, DType::kFp32).status(), absl::StatusCode::kDataLoss,
               {"model.safetensors"});
}

TEST_F(LoadTest, ContentTerms_DependOnConfigAndHeadersButNotOnTheFolder) {
  WriteConfig();
  WriteWeights();
  const std::vector<std::string> digest = Load()->weights->ContentTerms();
  TempFolder other;
  other.Write("config.json", folder_.Read("config.json"));
  other.Write("model.safetensors", folder_.Read("model.safetensors"));
  EXPECT_EQ(LoadModel(other.path(), {}, 0)->weights->ContentTerms(), digest);
  other.Write("config.json", SmallLlamaConfig({{"rms_norm_eps", "1e-5"}}));
  EXPECT_NE(LoadModel(other.path(), {}, 0)->weights->ContentTerms(), digest);
  WriteShards();
  std::filesystem::remove(folder_.File("model.safetensors"));
  EXPECT_NE(Load()->weights->ContentTerms(), digest);
}

TEST_F(LoadTest, Load_TensorsOfOneRow_AreReadWhole) {
  folder_.Write("config.json",
                R"({"model_type": "mlp", "in": 17, "hidden": 1, "layers": 2, "out": 1})");
  NamedTensors weights = {{"layers.0.weight", at::randn({1, 17})},
                          {"layers.0.bias", at::randn({1})},
                          {"layers.1.weight", at::randn({1, 1})},
                          {"layers.1.bias", at::randn({1})}};
  folder_.Write("model.safetensors", SafetensorsBytes(weights));
  auto loaded = Load();
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  ExpectHolds(*loaded, weights);
  EXPECT_TRUE(
      loaded->weights->Read(0, 16, 17, DType::kFp32)->equal(weights[0].second[0].slice(0, 16)));
}

TEST_F(LoadTest, Random_Llama_DrawsTheFamilysDistribution) {
  folder_.Write("config.json", SmallLlamaConfig({{"initializer_range", "0.05"}}));
  auto loaded = LoadModel("random:" + folder_.path(), {}, 3);
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  const ParamTable& table = loaded->model->table();
  for (const Parameter& parameter : table.parameters()) {
    const at::Tensor value =
        loaded->weights->Read(parameter.id, 0, parameter.numel, DType::kFp32).value();
    if (parameter.shape.size() == 1) {
      EXPECT_TRUE((value == 1).all().item<bool>()) << parameter.name;
      continue;
    }
    const double n = static_cast<double>(parameter.numel);
    EXPECT_NEAR(value.mean().item<double>(), 0, 5 * 0.05 / std::sqrt(n)) << parameter.name;
    EXPECT_NEAR(value.std().item<double>(), 0.05, 5 * 0.05 / std::sqrt(2 * n)) << parameter.name;
  }
}

TEST_F(LoadTest, Random_SameSeed_GivesTheSameWeightsWhateverIsReadInWhichOrder) {
  const std::string spec = "mlp:in=8,hidden=16,layers=3,out=4";
  auto a = LoadModel(spec, {}, 3), b = LoadModel(spec, {}, 3);
  const at::Tensor whole = a->weights->Read(2, 0, 256, DType::kFp32).value();
  b->weights->Read(4, 0, 64, DType::kFp32).IgnoreError();
  EXPECT_TRUE(b->weights->Read(2, 100, 200, DType::kFp32)->equal(whole.slice(0, 100, 200)));
  EXPECT_TRUE(b->weights->Read(2, 0, 256, DType::kFp32)->equal(whole));
  EXPECT_EQ(a->weights->ContentTerms(), b->weights->ContentTerms());

  for (const uint64_t seed : {uint64_t{4}, uint64_t{3} + (uint64_t{1} << 32)}) {
    auto other = LoadModel(spec, {}, seed);
    EXPECT_FALSE(other->weights->Read(2, 0, 256, DType::kFp32)->equal(whole)) << seed;
    EXPECT_NE(a->weights->ContentTerms(), other->weights->ContentTerms());
  }
}

TEST_F(LoadTest, ParameterSeed_SeedsAndIds_DifferInTheBitsThatTorchTakes) {
  std::set<uint32_t> low;
  for (uint64_t seed : {0ull, 1ull, 2ull, 1ull << 32, 1ull << 63}) {
    for (int id = 0; id < 300; ++id) low.insert(static_cast<uint32_t>(ParameterSeed(seed, id)));
  }
  EXPECT_EQ(low.size(), 1500u);
}

TEST_F(LoadTest, Mlp_Spec_DrawsLinearsDefaultRanges) {
  auto loaded = LoadModel("mlp:in=4,hidden=400,layers=2,out=100", {}, 1);
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  const std::vector<double> bounds = {0.5, 0.5, 0.05, 0.05};
  for (const Parameter& parameter : loaded->model->table().parameters()) {
    const at::Tensor value =
        loaded->weights->Read(parameter.id, 0, parameter.numel, DType::kFp32).value();
    const double bound = bounds[parameter.id];
    EXPECT_LE(value.abs().max().item<double>(), bound) << parameter.name;
    EXPECT_GT(value.max().item<double>(), bound * 0.9) << parameter.name;
    EXPECT_LT(value.min().item<double>(), -bound * 0.9) << parameter.name;
  }
}

TEST_F(LoadTest, Mlp_SpecOutOfRange_NamesKeyAndBounds) {
  ExpectStatus(LoadModel("mlp:in=0,hidden=16,layers=2,out=4", {}, 0).status(), kInvalid,
               {"--model=mlp:in=0", "in = 0: must be an integer from 1 to 1048576"});
  ExpectStatus(LoadModel("mlp:in=8,hidden=16,layers=999999,out=4", {}, 0).status(), kInvalid,
               {"layers = 999999", "10000"});
  ExpectStatus(LoadModel("mlp:in=8,hidden=16,layers=2", {}, 0).status(), kInvalid,
               {"out is missing"});
}

TEST_F(LoadTest, Random_DTypeOfTheConfig_IsTheEngines) {
  folder_.Write("config.json", SmallLlamaConfig({{"torch_dtype", "\"bfloat16\""}}));
  auto half = LoadModel("random:" + folder_.path(), {}, 0);
  auto full = LoadModel("random:" + folder_.path(), DType::kFp32, 0);
  ASSERT_TRUE(half.ok() && full.ok());
  EXPECT_EQ(half->model->table().dtype(), DType::kBf16);
  EXPECT_EQ(full->model->table().dtype(), DType::kFp32);
  const at::Tensor drawn = full->weights->Read(1, 0, 64, DType::kFp32).value();
  EXPECT_TRUE(half->weights->Read(1, 0, 64, DType::kFp32).value().equal(drawn));
  EXPECT_TRUE(half->weights->Read(1, 0, 64, DType::kBf16).value().equal(drawn.to(at::kBFloat16)));

  folder_.Write("config.json", SmallLlamaConfig({{"torch_dtype", "\"float16\""}}));
  EXPECT_EQ(LoadModel("random:" + folder_.path(), {}, 0)->model->table().dtype(), DType::kFp16);
}

}  // namespace
}  // namespace regroup
