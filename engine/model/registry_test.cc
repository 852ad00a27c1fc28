#include "engine/model/registry.h"

#include <gtest/gtest.h>

namespace regroup {
namespace {

struct Later {
  static absl::StatusOr<ModelDefinition> Define(const ConfigFile& config, DType) {
    return absl::AlreadyExistsError("reached " + config.model_type);
  }
};

const ModelRegistration<Later> kLater("later");

absl::Status Define(const std::string& type) {
  const auto file = ParseConfigFile("DIR/config.json", R"({"model_type": ")" + type + "\"}");
  return DefineModel(file.value(), DType::kFp32).status();
}

TEST(RegistryTest, DefineModel_UnknownModelType_NamesItAndWhatIsAllowed) {
  const absl::Status status = Define("mixtral");
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_EQ(status.message(),
            "not available in this version: model_type = \"mixtral\" in DIR/config.json; allowed: "
            "later, llama, mlp, qwen2, qwen3");
}

TEST(RegistryTest, DefineModel_RegisteredFamily_ReachesItsFactory) {
  EXPECT_EQ(Define("later").message(), "reached later");
}

TEST(RegistryTest, DefineModel_BuiltInFamily_ChecksItsFields) {
  EXPECT_EQ(Define("llama").message(),
            "DIR/config.json: vocab_size is missing: must be an integer from 1 to 16777216");
  EXPECT_EQ(Define("mlp").message(),
            "DIR/config.json: in is missing: must be an integer from 1 to 1048576");
}

TEST(RegistryDeathTest, RegisterModel_Twice_Aborts) {
  EXPECT_DEATH(RegisterModel("llama", Later::Define), "llama is registered twice");
}

}  // namespace
}  // namespace regroup
