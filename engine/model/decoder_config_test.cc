#include "engine/model/decoder_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "engine/model/test_models.h"

namespace regroup {
namespace {

using Changes = std::map<std::string, std::string>;

absl::StatusOr<DecoderConfig> Parse(const Changes& changes) {
  absl::StatusOr<ConfigFile> file = ParseConfigFile("DIR/config.json", SmallLlamaConfig(changes));
  if (!file.ok()) return file.status();
  return ParseDecoderConfig(*file);
}

TEST(DecoderConfigTest, Parse_AsTransformers4WritesIt_GivesAllFields) {
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
  EXPECT_EQ(config->rope.theta, 500000);
  EXPECT_EQ(config->rms_norm_eps, 1e-5);
  EXPECT_FALSE(config->tie_word_embeddings);
  EXPECT_EQ(config->eos_tokens, std::vector<int64_t>{2});
}

TEST(DecoderConfigTest, Parse_AsTransformers5WritesIt_TakesRopeParameters) {
  const auto config =
      Parse({{"rope_theta", ""},
             {"rope_scaling", ""},
             {"rope_parameters", R"({"rope_type": "default", "rope_theta": 100000})"},
             {"torch_dtype", ""},
             {"dtype", "\"float32\""}});
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->rope.theta, 100000);
}

TEST(DecoderConfigTest, Parse_OptionalFieldsAbsentOrNull_TakeTransformersDefaults) {
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
    EXPECT_EQ(config->rope.theta, 10000);
  }
}

TEST(DecoderConfigTest, Parse_HeadDimOfItsOwn_IsTaken) {
  EXPECT_EQ(Parse({{"head_dim", "32"}}).value().head_dim, 32);
}

TEST(DecoderConfigTest, Parse_Eos_MayBeATokenOrAListOrNull) {
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

TEST(DecoderConfigTest, Parse_FieldOutOfRange_NamesFileFieldValueAndWhatIsAllowed) {
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
           {"mlp_bias", "true", kUnimplemented, "= true"},
           {"hidden_act", "\"gelu\"", kUnimplemented, "= \"gelu\""},
           {"attention_dropout", "0.1", kUnimplemented, "= 0.1"},
           {"quantization_config", "{\"bits\": 4}", kUnimplemented, "bits"},
           {"rope_scaling", "{\"type\": \"linear\", \"factor\": 2.0}", kUnimplemented,
            "\"linear\""},
           {"rope_scaling", "{\"rope_type\": \"dynamic\", \"factor\": 2.0}", kUnimplemented,
            "allowed: \"default\", \"llama3\""},
           {"rope_scaling", "{\"rope_type\": \"llama3\"}", kInvalid, ".factor is missing"},
           {"use_sliding_window", "true", kUnimplemented, "= true"},
           {"layer_types", "[\"full_attention\", \"sliding_attention\"]", kUnimplemented,
            "= \"sliding_attention\""},
           {"layer_types", "[\"full_attention\"]", kInvalid, "num_hidden_layers = 2"},
           {"rope_scaling", "2", kInvalid, "an object or null"},
           {"rope_parameters", "{\"rope_type\": \"yarn\", \"rope_theta\": 1}", kUnimplemented,
            "yarn"},
           {"rope_parameters", "{\"rope_type\": \"default\", \"rope_theta\": 0}", kInvalid,
            "rope_theta = 0: must be a number from 1e-06 to 1e+15"},
           {"rope_parameters", "{\"rope_type\": \"default\", \"rope_theta\": 1e-300}", kInvalid,
            "from 1e-06"},
           {"rope_parameters", "{\"rope_type\": \"default\", \"rope_theta\": true}", kInvalid,
            "= true"},
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

TEST(DecoderConfigTest, Parse_HeadDimThatCannotBeDerived_IsRefused) {
  const absl::Status status = Parse({{"head_dim", ""}, {"hidden_size", "66"}}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("hidden_size = 66"), absl::string_view::npos) << status;
}

TEST(DecoderConfigTest, Parse_Qwen2_HasQkvBiasAndTheFamilysDefaults) {
  const Changes qwen2 = {{"model_type", "\"qwen2\""},
                         {"head_dim", ""},
                         {"eos_token_id", ""},
                         {"max_position_embeddings", ""},
                         {"use_sliding_window", "false"},
                         {"sliding_window", "4096"},
                         {"max_window_layers", "1"},
                         {"layer_types", R"(["full_attention", "full_attention"])"}};
  const auto config = Parse(qwen2);
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_TRUE(config->qkv_bias);
  EXPECT_FALSE(config->output_bias);
  EXPECT_FALSE(config->qk_norm);
  EXPECT_EQ(config->head_dim, 16);
  EXPECT_EQ(config->max_positions, 32768);
  EXPECT_EQ(config->eos_tokens, std::vector<int64_t>{});
  Changes heads = qwen2;
  heads["num_key_value_heads"] = "null";
  EXPECT_EQ(Parse(heads)->num_kv_heads, 4);
  heads["num_key_value_heads"] = "";
  EXPECT_NE(Parse(heads).status().message().find("num_key_value_heads = 32"),
            absl::string_view::npos)
      << Parse(heads).status();
}

TEST(DecoderConfigTest, Parse_Qwen3_HasHeadNormsAndItsOwnHeadDim) {
  const Changes qwen3 = {{"model_type", "\"qwen3\""}, {"head_dim", ""}};
  const auto config = Parse(qwen3);
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_TRUE(config->qk_norm);
  EXPECT_FALSE(config->qkv_bias);
  EXPECT_EQ(config->head_dim, 128);
}

TEST(DecoderConfigTest, Parse_AttentionBias_IsOfAllFourProjections) {
  for (const char* type : {"\"llama\"", "\"qwen3\""}) {
    const auto config = Parse({{"model_type", type}, {"attention_bias", "true"}});
    ASSERT_TRUE(config.ok()) << config.status();
    EXPECT_TRUE(config->qkv_bias && config->output_bias);
  }
  // transformers' Qwen2 has no such field.
  EXPECT_FALSE(
      Parse({{"model_type", "\"qwen2\""}, {"attention_bias", "true"}}).value().output_bias);
}

constexpr char kLlama3[] = R"({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
    "high_freq_factor": 4.0, "original_max_position_embeddings": 32})";

TEST(DecoderConfigTest, Parse_Llama3Rope_IsTheSameFromTransformers4And5) {
  std::string five = kLlama3;
  five.insert(1, "\"rope_theta\": 500000.0, ");
  const auto old_form = Parse({{"rope_scaling", kLlama3}, {"rope_theta", "500000.0"}});
  const auto new_form =
      Parse({{"rope_scaling", ""}, {"rope_theta", ""}, {"rope_parameters", five}});
  for (const auto& config : {old_form, new_form}) {
    ASSERT_TRUE(config.ok()) << config.status();
    EXPECT_EQ(config->rope.theta, 500000);
    ASSERT_TRUE(config->rope.llama3.has_value());
    EXPECT_EQ(config->rope.llama3->factor, 8);
    EXPECT_EQ(config->rope.llama3->low_freq_factor, 1);
    EXPECT_EQ(config->rope.llama3->high_freq_factor, 4);
    EXPECT_EQ(config->rope.llama3->original_max_positions, 32);
  }
}

TEST(DecoderConfigTest, Parse_Llama3Rope_WrongFieldsAreNamed) {
  const auto refused = [](const char* field, const char* value) {
    nlohmann::json rope = nlohmann::json::parse(kLlama3);
    if (value[0] == '\0') {
      rope.erase(field);
    } else {
      rope[field] = nlohmann::json::parse(value);
    }
    const absl::Status status = Parse({{"rope_scaling", rope.dump()}}).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    return std::string(status.message());
  };
  EXPECT_THAT(refused("factor", "0.5"), testing::HasSubstr("rope_scaling.factor = 0.5: must be a"));
  EXPECT_THAT(refused("factor", "\"8\""), testing::HasSubstr("rope_scaling.factor = \"8\""));
  EXPECT_THAT(refused("low_freq_factor", ""), testing::HasSubstr("low_freq_factor is missing"));
  EXPECT_THAT(refused("high_freq_factor", "1.0"), testing::HasSubstr("above low_freq_factor = 1"));
  EXPECT_THAT(refused("original_max_position_embeddings", "0"),
              testing::HasSubstr("rope_scaling.original_max_position_embeddings = 0"));
}

TEST(DecoderConfigTest, Parse_Llama3RopeWithoutOriginalLength_TakesTransformersDefault) {
  nlohmann::json rope = nlohmann::json::parse(kLlama3);
  rope.erase("original_max_position_embeddings");
  EXPECT_EQ(Parse({{"rope_scaling", rope.dump()}})->rope.llama3->original_max_positions, 64);
  EXPECT_EQ(Parse({{"rope_scaling", kLlama3}, {"original_max_position_embeddings", "16"}})
                ->rope.llama3->original_max_positions,
            16);
}

}  // namespace
}  // namespace regroup
