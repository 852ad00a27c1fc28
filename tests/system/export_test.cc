// What goes in comes out: export writes the bytes that were read, or drawn, whatever the layout.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/system/cli.h"
#include "tests/system/fixtures.h"

namespace regroup::harness {
namespace {

using Names = std::vector<std::string>;

class ExportTest : public FixtureTest {
 protected:
  static void SetUpTestSuite() { StartDaemonOnFixtures(3); }

  static TensorMap Fresh(const std::string& ranks, const std::string& model, const Flags& flags) {
    cli().Create("e", ranks, model, flags);
    TensorMap tensors = cli().Export("e");
    cli().Delete("e");
    return tensors;
  }

  static nlohmann::json ConfigIn(const std::string& folder) {
    return nlohmann::json::parse(ReadFile(folder + "/config.json"), nullptr, false);
  }
};

TEST_F(ExportTest, Export_WithoutAStep_IsTheFileByteForByte) {
  for (const std::string ranks : {"0", "1-2", "2,0-1"}) {
    for (const LlamaFixture* model : {&Data().untied, &Data().tied}) {
      cli().Create("e", ranks, model->folder, OptimizerFlags(AdamW()));
      if (ranks[0] == '2') EXPECT_EQ(cli().Ranks("e"), (std::vector<int>{2, 0, 1}));
      const std::string folder = cli().ExportFolder("e");
      EXPECT_EQ(Differences(ReadSafetensors(folder + "/model.safetensors"), model->weights),
                Names{});
      const nlohmann::json config = ConfigIn(folder);
      const nlohmann::json expected = ConfigOf(model->shape);
      for (const auto& [name, value] : expected.items()) {
        EXPECT_EQ(config.value(name, nlohmann::json()), value) << name;
      }
      cli().Delete("e");
    }
  }
}

// Tied weights are exported once; the tied export is smaller by exactly one embedding.
TEST_F(ExportTest, Export_Tied_HasNoSecondHead) {
  const TensorMap tied = Fresh("0-2", Data().tied.folder, OptimizerFlags(Sgd()));
  EXPECT_EQ(tied.count("lm_head.weight"), 0u);
  EXPECT_EQ(tied.size() + 1, Data().untied.weights.size());
}

TEST_F(ExportTest, Export_WhatWasExported_ComesBackByteForByte) {
  cli().Create("e", "0-1", Data().untied.folder, OptimizerFlags(AdamW()));
  cli().Train("e", {Data().text.path, 2, 4, kSeq, {}});
  const std::string folder = cli().ExportFolder("e");
  const TensorMap trained = ReadSafetensors(folder + "/model.safetensors");
  EXPECT_EQ(Differences(trained, Data().untied.weights).size(), trained.size());
  cli().Delete("e");
  EXPECT_EQ(Differences(Fresh("1", folder, OptimizerFlags(Sgd())), trained), Names{});
}

TEST_F(ExportTest, Export_Mlp_HasItsLayersAndModelType) {
  cli().Create("e", "1-2", kMlpSpec, OptimizerFlags(Sgd()));
  const std::string folder = cli().ExportFolder("e");
  const TensorMap tensors = ReadSafetensors(folder + "/model.safetensors");
  ASSERT_EQ(tensors.size(), 6u);
  EXPECT_EQ(tensors.at("layers.0.weight").shape, (std::vector<int64_t>{128, 8}));
  EXPECT_EQ(tensors.at("layers.1.bias").shape, (std::vector<int64_t>{128}));
  EXPECT_EQ(tensors.at("layers.2.weight").shape, (std::vector<int64_t>{4, 128}));
  EXPECT_EQ(ConfigIn(folder)["model_type"], "mlp");
  // torch.nn.Linear draws from +-1/sqrt(in).
  for (const float value : ToFloats(tensors.at("layers.1.weight"))) {
    ASSERT_LE(std::abs(value), 1 / std::sqrt(128.0F));
  }
}

// Drawn weights depend on the seed and on nothing else.
TEST_F(ExportTest, Create_Seeded_DrawsTheSameOnEveryLayout) {
  // The last one's tensors have one row, its second layer fewer elements than there are ranks.
  for (const std::string& model : {std::string(kMlpSpec), "random:" + Data().untied.folder,
                                   std::string("mlp:in=17,hidden=1,layers=2,out=1")}) {
    Flags flags = OptimizerFlags(Sgd());
    flags.push_back("--seed=5");
    const TensorMap one = Fresh("2", model, flags);
    EXPECT_EQ(Differences(Fresh("0-2", model, flags), one), Names{});
    flags.back() = "--seed=6";
    EXPECT_NE(Differences(Fresh("0-2", model, flags), one), Names{});
  }
}

TEST_F(ExportTest, Create_Random_DrawsAsTheConfigSays) {
  const TensorMap drawn = Fresh("0-1", "random:" + Data().untied.folder, OptimizerFlags(Sgd()));
  ASSERT_EQ(drawn.size(), Data().untied.weights.size());
  double squares = 0;
  double count = 0;
  for (const auto& [name, tensor] : drawn) {
    EXPECT_EQ(tensor.shape, Data().untied.weights.at(name).shape) << name;
    for (const float value : ToFloats(tensor)) {
      if (tensor.shape.size() == 1) {
        ASSERT_EQ(value, 1.0F) << name;
      } else {
        squares += double{value} * value;
        ++count;
      }
    }
  }
  EXPECT_NEAR(std::sqrt(squares / count), 0.02, 0.0005);
}

TEST_F(ExportTest, Export_IntoAFolderInUse_IsRefusedAndTouchesNothing) {
  cli().Create("e", "0", kMlpSpec, OptimizerFlags(Sgd()));
  const std::string used = DataPath("used");
  std::filesystem::create_directories(used);
  WriteFile(used + "/model.safetensors", "mine");
  const CtlResult refused = cli().ctl().Run({"export", "e", used});
  EXPECT_EQ(refused.exit, 1);
  EXPECT_NE(refused.errors.find(used), std::string::npos) << refused.errors;
  EXPECT_EQ(ReadFile(used + "/model.safetensors"), "mine");

  const std::string empty = DataPath("empty");
  std::filesystem::create_directories(empty);
  cli().ctl().MustRun({"export", "e", empty});
  EXPECT_EQ(ReadSafetensors(empty + "/model.safetensors").size(), 6u);
  const std::string first = ReadFile(empty + "/model.safetensors");
  EXPECT_EQ(cli().ctl().Run({"export", "e", empty}).exit, 1);
  EXPECT_EQ(ReadFile(empty + "/model.safetensors"), first);
}

// Files of one process cannot grow beyond `bytes`.
void LimitFiles(pid_t pid, rlim_t bytes) {
  rlimit limit{};
  ASSERT_EQ(prlimit(pid, RLIMIT_FSIZE, nullptr, &limit), 0);
  limit.rlim_cur = std::min(bytes, limit.rlim_max);
  ASSERT_EQ(prlimit(pid, RLIMIT_FSIZE, &limit, nullptr), 0);
}

// The kernel's default answer to a write beyond the limit is to kill.
TEST_F(ExportTest, Export_BeyondTheFileSizeLimit_IsRefusedAndTheWorkerLives) {
  cli().Create("e", "0-1", kMlpSpec, OptimizerFlags(Sgd()));
  const std::string parent = DataPath("limited");
  std::filesystem::create_directories(parent);
  const pid_t pid = daemon().WorkerPid(0);
  for (const rlim_t bytes : {0, 4096}) {  // not even the config; not the weights
    LimitFiles(pid, bytes);
    const CtlResult result = cli().ctl().Run({"export", "e", parent + "/out"});
    EXPECT_EQ(result.exit, 1) << result.errors;
    const nlohmann::json operation = result.json();
    EXPECT_EQ(operation["errorCode"], 8) << operation;  // RESOURCE_EXHAUSTED
    EXPECT_NE(result.errors.find("DIR=" + parent), std::string::npos) << result.errors;
    EXPECT_TRUE(std::filesystem::is_empty(parent));
    EXPECT_EQ(cli().State("e"), "READY");
    EXPECT_EQ(daemon().WorkerPid(0), pid);
  }
  LimitFiles(pid, RLIM_INFINITY);
  cli().ctl().MustRun({"export", "e", parent + "/out"});
  EXPECT_EQ(ReadSafetensors(parent + "/out/model.safetensors").size(), 6u);
}

// So does the daemon, whose store cannot grow then.
TEST_F(ExportTest, Daemon_BeyondTheFileSizeLimit_RefusesAndLives) {
  LimitFiles(daemon().process().pid(), 0);
  const CtlResult result = cli().ctl().Run(
      {"engine", "create", "e", "--ranks=0", "--lr=0.1", std::string("--model=") + kMlpSpec});
  LimitFiles(daemon().process().pid(), RLIM_INFINITY);
  EXPECT_EQ(result.exit, 1) << result.errors;
  EXPECT_TRUE(cli().EngineNames().empty());
  cli().Create("e", "0", kMlpSpec, OptimizerFlags(Sgd()));
}

// Nothing half-written stays beside the exports of this file.
TEST_F(ExportTest, Export_Leaves_OnlyWhatWasAskedFor) {
  cli().Create("e", "0-2", kMlpSpec, OptimizerFlags(Sgd()));
  const std::string parent = DataPath("parent");
  std::filesystem::create_directories(parent);
  cli().ctl().MustRun({"export", "e", parent + "/out"});
  Names names;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(parent)) {
    names.push_back(std::filesystem::relative(entry.path(), parent).string());
  }
  std::sort(names.begin(), names.end());
  EXPECT_EQ(names, (Names{"out", "out/config.json", "out/model.safetensors"}));
}

}  // namespace
}  // namespace regroup::harness
