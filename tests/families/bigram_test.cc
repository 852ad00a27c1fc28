// A family that another package registered trains, generates and is exported like any other.
#include "tests/families/bigram.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/data/dataset.h"
#include "engine/model/test_models.h"
#include "tests/families/engine_run.h"

namespace regroup {
namespace {

constexpr char kConfig[] = R"({"model_type": "bigram", "vocab_size": 16, "hidden_size": 8})";
constexpr int64_t kCycle = 7;  // tokens 0 ... 6, over and over

TEST(BigramTest, TrainedOnTwoRanks_ContinuesTheCycleThatItSaw) {
  TempFolder folder;
  folder.Write("config.json", kConfig);
  std::vector<int64_t> tokens;
  for (int64_t i = 0; i < 141; ++i) tokens.push_back(i % kCycle);
  folder.Write("cycle.u16.bin", TokenBytes(tokens));
  const std::string spec = "random:" + folder.path();
  const LoadedModel loaded = Load(spec);
  const auto data = Dataset::Open(folder.File("cycle.u16.bin"), /*seq=*/10, loaded.model->limits());
  ASSERT_TRUE(data.ok()) << data.status();

  EngineState trained;
  RunTrainers({0, 1}, AdamWSpec(0.05), spec, [&](int rank, Trainer& trainer) {
    double first = 0, last = 0;
    for (int step = 0; step < 40; ++step) {
      const auto result = trainer.Step(**data, /*batch=*/3, /*accumulate=*/1);
      ASSERT_TRUE(result.ok()) << result.status();
      (step == 0 ? first : last) = result->loss;
    }
    EXPECT_GT(first, 2);
    EXPECT_LT(last, 0.5);
    EngineState gathered = GatheredState(trainer, loaded.model->table(), rank);
    if (rank == 0) trained = std::move(gathered);
  });
  EXPECT_THAT(Generate(*loaded.model, std::move(trained), {9, 4}, 9),
              testing::ElementsAre(5, 6, 0, 1, 2, 3, 4, 5, 6));
}

TEST(BigramTest, Exported_LoadsAgainWithTheSameWeights) {
  TempFolder folder;
  folder.Write("config.json", kConfig);
  LoadedModel loaded = Load("random:" + folder.path());
  const ParamTable& table = loaded.model->table();
  const EngineState state = InitialState(loaded);
  const std::string target = folder.File("out");
  auto writer = ExportWriter::Start(target, loaded.config_json, table);
  ASSERT_TRUE(writer.ok()) << writer.status();
  for (const Parameter& parameter : table.parameters()) {
    const at::Tensor value = state.units[parameter.unit]
                                 .weights.narrow(0, parameter.offset, parameter.numel)
                                 .reshape(parameter.shape);
    ASSERT_TRUE((*writer)->Write(parameter.id, value).ok());
  }
  ASSERT_TRUE((*writer)->Commit().ok());
  LoadedModel again = Load(target);
  const EngineState same = InitialState(again);
  for (const Unit& unit : table.units()) {
    EXPECT_TRUE(same.units[unit.id].weights.equal(state.units[unit.id].weights)) << unit.name;
  }
}

TEST(BigramTest, Define_FieldMissing_IsNamed) {
  TempFolder folder;
  folder.Write("config.json", R"({"model_type": "bigram", "vocab_size": 16})");
  const absl::Status status = LoadModel("random:" + folder.path(), std::nullopt, 0).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), testing::HasSubstr("hidden_size is missing"));
}

}  // namespace
}  // namespace regroup
