#include "engine/model/hf_config.h"

#include <gtest/gtest.h>

#include "engine/model/test_models.h"

namespace regroup {
namespace {

using Changes = std::map<std::string, std::string>;

absl::StatusOr<LlamaConfig> Parse(const Changes& changes) {
  absl::StatusOr<ConfigFile> file = ParseConfigFile("DIR/config.json", SmallLlamaConfig(changes));
  if (!file.ok()) return file.status();
  return ParseLlamaConfig(*file);
}

TEST(HfConfigTest, Parse_AsTransformers4WritesIt_GivesAllFields) {
  const auto config = Parse({{"rope_theta", "500000.0"}, {"rms_norm_eps", "1e-05"}});
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->vocab_size, 257);
  EXPECT_EQ(config->hidden_size, 64);
  EXPECT_EQ(config->intermediate_size, 160);
  EXPECT_EQ(config->num_layers, 2);
  EXPECT_EQ(config->num_heads, 4);
  EXPECT_EQ(config->num_kv_heads, 2);
  EXPECT_EQ(config->head_dim, 16);
  EXPECT_EQ(config->max_positions, 64);
  EXPECT_EQ(config->rope_theta, 500000);
  EXPECT_EQ(config->rms_norm_eps, 1e-5);
  EXPECT_FALSE(config->tie_word_embeddings);
  EXPECT_EQ(config->eos_tokens, std::vector<int64_t>{2});
}

TEST(HfConfigTest, Parse_AsTransformers5WritesIt_TakesRopeParameters) {
  const auto config =
      Parse({{"rope_theta", ""},
             {"rope_scaling", ""},
             {"rope_parameters", R"({"rope_type": "default", "rope_theta": 100000})"},
             {"torch_dtype", ""},
             {"dtype", "\"float32\""}});
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->rope_theta, 100000);
}

TEST(HfConfigTest, Parse_OptionalFieldsAbsentOrNull_TakeTransformersDefaults) {
  for (const char* absent : {"", "null"}) {
    Changes changes;
    for (const char* field : {"head_dim", "num_key_value_heads", "max_position_embeddings",
                              "rms_norm_eps", "initializer_range", "tie_word_embeddings",
                              "hidden_act", "attention_bias", "mlp_bias", "rope_theta"}) {
      changes[field] = absent;
    }
    const auto config = Parse(changes);
    ASSERT_TRUE(config.ok()) << config.status();
    EXPECT_EQ(config->head_dim, 16);
    EXPECT_EQ(config->num_kv_heads, 4);
    EXPECT_EQ(config->max_positions, 2048);
    EXPECT_EQ(config->rms_norm_eps, 1e-6);
    EXPECT_EQ(config->initializer_range, 0.02);
    EXPECT_EQ(config->rope_theta, 10000);
  }
}

TEST(HfConfigTest, Parse_HeadDimOfItsOwn_IsTaken) {
  EXPECT_EQ(Parse({{"head_dim", "32"}}).value().head_dim, 32);
}

TEST(HfConfigTest, Parse_Eos_MayBeATokenOrAListOrNull) {
  EXPECT_EQ(Parse({{"eos_token_id", "[2, 7]"}}).value().eos_tokens, (std::vector<int64_t>{2, 7}));
  EXPECT_EQ(Parse({{"eos_token_id", "null"}}).value().eos_tokens, std::vector<int64_t>{});
  EXPECT_EQ(Parse({{"eos_token_id", ""}}).value().eos_tokens, std::vector<int64_t>{2});
}

struct Refusal {
  const char* field;
  const char* value;
  absl::StatusCode code;
  const char* words;  // in the message, beside field and file
};

TEST(HfConfigTest, Parse_FieldOutOfRange_NamesFileFieldValueAndWhatIsAllowed) {
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  constexpr auto kUnimplemented = absl::StatusCode::kUnimplemented;
  for (const Refusal& refusal : std::vector<Refusal>{
           {"vocab_size", "0", kInvalid, "= 0: must be an integer from 1"},
           {"vocab_size", "", kInvalid, "is missing: must be an integer"},
           {"vocab_size", "null", kInvalid, "is missing"},
           {"vocab_size", "257.5", kInvalid, "= 257.5: must be an integer"},
           {"vocab_size", "\"257\"", kInvalid, "= \"257\""},
           {"vocab_size", "true", kInvalid, "= true"},
           {"vocab_size", "18446744073709551615", kInvalid, "= 18446744073709551615"},
           {"vocab_size", "1e300", kInvalid, "must be an integer"},
           {"hidden_size", "9223372036854775807", kInvalid, "262144"},
           {"hidden_size", "-64", kInvalid, "= -64"},
           {"intermediate_size", "1048577", kInvalid, "1048576"},
           {"num_hidden_layers", "10001", kInvalid, "10000"},
           {"num_hidden_layers", "0", kInvalid, "from 1"},
           {"num_attention_heads", "0", kInvalid, "from 1"},
           {"num_key_value_heads", "3", kInvalid, "a divisor of num_attention_heads = 4"},
           {"head_dim", "15", kInvalid, "even"},
           {"head_dim", "8192", kInvalid, "4096"},
           {"max_position_embeddings", "0", kInvalid, "from 1"},
           {"max_position_embeddings", "2147483648", kInvalid, "16777216"},
           {"rms_norm_eps", "-1e-6", kInvalid, "from 0"},
           {"rms_norm_eps", "[]", kInvalid, "= []"},
           {"initializer_range", "-1", kInvalid, "from 0"},
           {"rope_theta", "0", kInvalid, "= 0"},
           {"tie_word_embeddings", "1", kInvalid, "true or false"},
           {"eos_token_id", "257", kInvalid, "from 0 to 256"},
           {"eos_token_id", "-1", kInvalid, "from 0 to 256"},
           {"eos_token_id", "[2, 257]", kInvalid, "from 0 to 256"},
           {"attention_bias", "true", kUnimplemented, "= true"},
           {"mlp_bias", "true", kUnimplemented, "= true"},
           {"hidden_act", "\"gelu\"", kUnimplemented, "= \"gelu\""},
           {"attention_dropout", "0.1", kUnimplemented, "= 0.1"},
           {"quantization_config", "{\"bits\": 4}", kUnimplemented, "bits"},
           {"rope_scaling", "{\"type\": \"linear\", \"factor\": 2.0}", kUnimplemented,
            "\"linear\""},
           {"rope_scaling", "{\"rope_type\": \"llama3\"}", kUnimplemented, "\"llama3\""},
           {"rope_scaling", "2", kInvalid, "an object or null"},
           {"rope_parameters", "{\"rope_type\": \"yarn\", \"rope_theta\": 1}", kUnimplemented,
            "yarn"},
           {"rope_parameters", "{\"rope_type\": \"default\", \"rope_theta\": 0}", kInvalid,
            "above 0"},
           {"rope_parameters", "{\"full_attention\": {}}", kUnimplemented, "full_attention"},
           {"partial_rotary_factor", "0.5", kUnimplemented, "= 0.5"},
       }) {
    const absl::Status status = Parse({{refusal.field, refusal.value}}).status();
    EXPECT_EQ(status.code(), refusal.code) << refusal.field << " " << refusal.value << status;
    for (const char* words : {"DIR/config.json", refusal.field, refusal.words}) {
      EXPECT_NE(status.message().find(words), absl::string_view::npos) << words << ": " << status;
    }
  }
}

TEST(HfConfigTest, Parse_HeadDimThatCannotBeDerived_IsRefused) {
  const absl::Status status = Parse({{"head_dim", ""}, {"hidden_size", "66"}}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("hidden_size = 66"), absl::string_view::npos) << status;
}

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
