#include "engine/model/hf_config.h"

#include <gtest/gtest.h>

#include "engine/model/test_models.h"

namespace regroup {
namespace {

using Changes = std::map<std::string, std::string>;

TEST(HfConfigTest, ParseConfigFile_NoModelTypeOrNoObject_IsRefused) {
  for (const char* text : {"[]", "{}", R"({"model_type": 3})", R"({"model_type": null})"}) {
    EXPECT_EQ(ParseConfigFile("c", text).status().code(), absl::StatusCode::kInvalidArgument)
        << text;
  }
  EXPECT_NE(ParseConfigFile("c", R"({"model_type": "a", "model_type": "b"})")
                .status()
                .message()
                .find("duplicate key"),
            absl::string_view::npos);
}

TEST(HfConfigTest, ConfiguredDType_BothSpellings_AreRead) {
  const auto dtype = [](const Changes& changes) {
    return ConfiguredDType(ParseConfigFile("c", SmallLlamaConfig(changes)).value());
  };
  EXPECT_EQ(dtype({}).value(), DType::kFp32);
  EXPECT_EQ(dtype({{"torch_dtype", "\"bfloat16\""}}).value(), DType::kBf16);
  EXPECT_EQ(dtype({{"torch_dtype", ""}, {"dtype", "\"float16\""}}).value(), DType::kFp16);
  EXPECT_EQ(dtype({{"torch_dtype", ""}}).value(), std::nullopt);
  EXPECT_EQ(dtype({{"torch_dtype", "\"float64\""}}).status().code(),
            absl::StatusCode::kUnimplemented);
}

}  // namespace
}  // namespace regroup
