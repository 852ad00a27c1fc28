#include "engine/model/registry.h"

#include <gtest/gtest.h>

namespace regroup {
namespace {

absl::StatusOr<ModelDefinition> DefineLater(const ConfigFile& config, DType) {
  return absl::AlreadyExistsError("reached " + config.model_type);
}

// Once in the process, as a family does.
const bool kRegistered = [] {
  RegisterModel("later", DefineLater);
  return true;
}();

absl::Status Define(const std::string& type) {
  const auto file = ParseConfigFile("DIR/config.json", R"({"model_type": ")" + type + "\"}");
  return DefineModel(file.value(), DType::kFp32).status();
}

TEST(RegistryTest, DefineModel_UnknownModelType_NamesItAndWhatIsAllowed) {
  ASSERT_TRUE(kRegistered);
  const absl::Status status = Define("mixtral");
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_EQ(status.message(),
            "not available in this version: model_type = \"mixtral\" in DIR/config.json; allowed: "
            "later, llama, mlp");
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
  EXPECT_DEATH(RegisterModel("llama", DefineLater), "llama is registered twice");
}

}  // namespace
}  // namespace regroup
