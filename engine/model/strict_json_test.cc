#include "engine/model/strict_json.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace regroup {
namespace {

absl::Status Parse(absl::string_view text) { return ParseStrictJson(text, "f.json").status(); }

TEST(StrictJsonTest, Parse_Object_GivesItsFields) {
  const auto value = ParseStrictJson(R"({"a": [1, {"a": 2}], "b": {"a": 3}})", "f.json");
  ASSERT_TRUE(value.ok()) << value.status();
  EXPECT_EQ((*value)["a"][1]["a"], 2);
  EXPECT_EQ((*value)["b"]["a"], 3);
}

TEST(StrictJsonTest, Parse_DuplicateKey_IsRefusedNamingIt) {
  for (const char* text : {R"({"a": 1, "a": 1})", R"({"b": {"a": 1, "c": [], "a": 2}})",
                           R"([{"x": 1}, {"a": {"y": 1}, "a": 2}])"}) {
    const absl::Status status = Parse(text);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_EQ(status.message(), "f.json: duplicate key \"a\"");
  }
}

TEST(StrictJsonTest, Parse_NotJson_IsRefusedWithThePosition) {
  for (const char* text : {"", "{", "{]", "{\"a\": NaN}", "{\"a\": 1} x", "\"\xff\"", "1e400"}) {
    const absl::Status status = Parse(text);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_EQ(status.message().find("f.json: not valid JSON"), 0u) << status;
  }
}

TEST(StrictJsonTest, Parse_DeepNesting_IsRefused) {
  EXPECT_TRUE(Parse(std::string(20, '[') + std::string(20, ']')).ok());
  for (const int depth : {40, 1000000}) {
    const absl::Status status = Parse(std::string(depth, '['));
    EXPECT_EQ(status.message(), "f.json: nested deeper than 32 levels");
  }
}

TEST(StrictJsonTest, Quote_ForeignText_IsEscapedAndCut) {
  EXPECT_EQ(Quote("a\n\x1b"), "\"a\\n\\x1b\"");
  EXPECT_EQ(Quote(std::string(500, 'x')), "\"" + std::string(100, 'x') + "...\"");
}

}  // namespace
}  // namespace regroup
