#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "absl/strings/match.h"
#include "engine/model/load.h"
#include "engine/model/safetensors.h"
#include "engine/model/test_models.h"

namespace regroup {
namespace {

namespace fs = std::filesystem;

absl::StatusOr<int64_t> Export(const std::string& directory, const std::string& config,
                               const ParamTable& table, const NamedTensors& weights) {
  auto writer = ExportWriter::Start(directory, config, table);
  if (!writer.ok()) return writer.status();
  for (const Parameter& parameter : table.parameters()) {
    const absl::Status status = (*writer)->Write(parameter.id, weights[parameter.id].second);
    if (!status.ok()) return status;
  }
  return (*writer)->Commit();
}

class ExportTest : public testing::Test {
 protected:
  ExportTest() { Use({}); }

  void Use(const std::map<std::string, std::string>& changes) {
    config_ = SmallLlamaConfig(changes);
    model_ = ModelOf(config_);
    weights_ = SmallWeights(model_->table(), 5);
  }
  absl::StatusOr<int64_t> ExportTo(const std::string& name) {
    return Export(folder_.File(name), config_, model_->table(), weights_);
  }
  void ExpectHolds(const std::string& name) {
    auto loaded = LoadModel(folder_.File(name), {}, 0);
    ASSERT_TRUE(loaded.ok()) << loaded.status();
    for (const Parameter& parameter : model_->table().parameters()) {
      EXPECT_TRUE(loaded->weights->Read(parameter.id, 0, parameter.numel, DType::kFp32)
                      ->equal(weights_[parameter.id].second.reshape({-1})))
          << parameter.name;
    }
  }

  TempFolder folder_;
  std::string config_;
  std::unique_ptr<Model> model_;
  NamedTensors weights_;
};

TEST_F(ExportTest, Commit_NewFolder_LoadsBackBitForBit) {
  const auto bytes = ExportTo("out");
  ASSERT_TRUE(bytes.ok()) << bytes.status();
  EXPECT_EQ(*bytes, static_cast<int64_t>(fs::file_size(folder_.File("out/model.safetensors")) +
                                         fs::file_size(folder_.File("out/config.json"))));
  EXPECT_EQ(folder_.Read("out/config.json"), config_);
  EXPECT_EQ(folder_.List(), std::vector<std::string>{"out"});
  ExpectHolds("out");
}

TEST_F(ExportTest, Commit_EmptyFolderOrTrailingSlashOrLink_IsFilled) {
  fs::create_directory(folder_.File("empty"));
  fs::permissions(folder_.File("empty"), fs::perms::owner_all);
  ASSERT_TRUE(ExportTo("empty").ok());
  EXPECT_EQ(fs::status(folder_.File("empty")).permissions(), fs::perms::owner_all);
  ASSERT_TRUE(ExportTo("slash//").ok());
  fs::create_directory(folder_.File("real"));
  fs::create_directory_symlink("real", folder_.File("link"));
  ASSERT_TRUE(ExportTo("link").ok());
  for (const char* name : {"empty", "slash", "real", "link"}) ExpectHolds(name);
  EXPECT_EQ(folder_.List(), (std::vector<std::string>{"empty", "link", "real", "slash"}));
}

TEST_F(ExportTest, Commit_Tied_IsSmallerByTheHead) {
  ASSERT_TRUE(ExportTo("untied").ok());
  Use({{"tie_word_embeddings", "true"}});
  ASSERT_TRUE(ExportTo("tied").ok());
  ExpectHolds("tied");
  const auto data_bytes = [this](const std::string& name) {
    return SafetensorsFile::Open(folder_.File(name + "/model.safetensors"))
        .value()
        ->tensors()
        .back()
        .end;
  };
  EXPECT_EQ(data_bytes("untied") - data_bytes("tied"), 65792);
}

TEST_F(ExportTest, Commit_ConfigOfAnotherDType_IsAdaptedAndKeepsItsFields) {
  Use({{"torch_dtype", "\"bfloat16\""},
       {"dtype", "\"float16\""},
       {"my_field", "[1, {\"a\": null}]"}});
  ASSERT_TRUE(ExportTo("out").ok());
  auto expected = nlohmann::ordered_json::parse(config_);
  expected["torch_dtype"] = "float32";
  expected["dtype"] = "float32";
  const auto written = nlohmann::ordered_json::parse(folder_.Read("out/config.json"));
  EXPECT_EQ(written, expected);
  EXPECT_EQ(written.begin().key(), "architectures");  // in the order of the original
}

TEST_F(ExportTest, Commit_MlpSpec_LoadsBackAsAFolder) {
  auto made = LoadModel("mlp:in=8,hidden=16,layers=2,out=4", {}, 9);
  NamedTensors values;
  for (const Parameter& parameter : made->model->table().parameters()) {
    values.emplace_back(parameter.name,
                        made->weights->Read(parameter.id, 0, parameter.numel, DType::kFp32)
                            ->reshape(parameter.shape));
  }
  ASSERT_TRUE(Export(folder_.File("mlp"), made->config_json, made->model->table(), values).ok());
  auto loaded = LoadModel(folder_.File("mlp"), {}, 0);
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_EQ(loaded->model->table().Describe(), made->model->table().Describe());
  EXPECT_TRUE(loaded->weights->Read(2, 0, 64, DType::kFp32)->equal(values[2].second.reshape({-1})));
  EXPECT_EQ(nlohmann::json::parse(folder_.Read("mlp/config.json"))["model_type"], "mlp");
}

TEST_F(ExportTest, Start_FolderThatIsNotEmpty_IsRefusedAndKept) {
  fs::create_directory(folder_.File("out"));
  folder_.Write("out/model-00001-of-00004.safetensors", "old");
  const absl::Status status = ExportTo("out").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kAlreadyExists) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "not empty")) << status;
  EXPECT_EQ(folder_.Read("out/model-00001-of-00004.safetensors"), "old");
  EXPECT_EQ(folder_.List(), std::vector<std::string>{"out"});
  ASSERT_TRUE(ExportTo("again").ok());
  EXPECT_EQ(ExportTo("again").status().code(), absl::StatusCode::kAlreadyExists);
}

TEST_F(ExportTest, Start_FileOrDanglingLink_IsRefused) {
  folder_.Write("file", "x");
  fs::create_symlink("nowhere", folder_.File("dangling"));
  EXPECT_EQ(ExportTo("file").status().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(ExportTo("dangling").status().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(folder_.Read("file"), "x");
}

TEST_F(ExportTest, Start_ParentMissingOrAFile_ReturnsNotFound) {
  folder_.Write("file", "x");
  EXPECT_EQ(ExportTo("none/out").status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(ExportTo("file/out").status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(ExportTo("none/..").status().code(), absl::StatusCode::kNotFound);
}

TEST_F(ExportTest, Start_ParentNotWritable_ReturnsPermissionDenied) {
  if (geteuid() == 0) GTEST_SKIP() << "root may write everywhere";
  fs::create_directory(folder_.File("closed"));
  ASSERT_EQ(chmod(folder_.File("closed").c_str(), 0500), 0);
  EXPECT_EQ(ExportTo("closed/out").status().code(), absl::StatusCode::kPermissionDenied);
}

TEST_F(ExportTest, Destroy_WithoutCommit_LeavesNothing) {
  auto writer = ExportWriter::Start(folder_.File("out"), config_, model_->table());
  ASSERT_TRUE(writer.ok()) << writer.status();
  ASSERT_TRUE((*writer)->Write(0, weights_[0].second).ok());
  EXPECT_FALSE(fs::exists(folder_.File("out")));
  EXPECT_EQ(folder_.List().size(), 1u);  // aside
  writer->reset();
  EXPECT_TRUE(folder_.List().empty());
}

TEST_F(ExportTest, Commit_FolderFilledMeanwhile_IsRefusedAndKept) {
  auto writer = ExportWriter::Start(folder_.File("out"), config_, model_->table());
  for (const Parameter& parameter : model_->table().parameters()) {
    ASSERT_TRUE((*writer)->Write(parameter.id, weights_[parameter.id].second).ok());
  }
  fs::create_directory(folder_.File("out"));
  folder_.Write("out/theirs", "x");
  EXPECT_EQ((*writer)->Commit().status().code(), absl::StatusCode::kAlreadyExists);
  writer->reset();
  EXPECT_EQ(folder_.List(), std::vector<std::string>{"out"});
  EXPECT_EQ(folder_.Read("out/theirs"), "x");
}

TEST_F(ExportTest, Write_OutOfOrderOrMisshaped_IsRefused) {
  auto writer = ExportWriter::Start(folder_.File("out"), config_, model_->table());
  ASSERT_TRUE(writer.ok());
  EXPECT_EQ((*writer)->Write(1, weights_[1].second).code(), absl::StatusCode::kInternal);
  EXPECT_EQ((*writer)->Write(0, weights_[0].second.t()).code(), absl::StatusCode::kInternal);
  EXPECT_EQ((*writer)->Write(0, weights_[0].second.to(at::kHalf)).code(),
            absl::StatusCode::kInternal);
  EXPECT_EQ((*writer)->Commit().status().code(), absl::StatusCode::kInternal);
  EXPECT_TRUE((*writer)->Write(0, weights_[0].second).ok());
}

TEST_F(ExportTest, Write_StridedValue_IsWrittenRowMajor) {
  for (auto& entry : weights_) {
    if (entry.second.dim() == 2) entry.second = entry.second.t().contiguous().t();
  }
  ASSERT_TRUE(ExportTo("out").ok());
  ExpectHolds("out");
}

}  // namespace
}  // namespace regroup
