#include "daemon/control/request_log.h"

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace regroup {
namespace {

v1::DeleteEngineRequest Delete(const std::string& name) {
  v1::DeleteEngineRequest request;
  request.set_name(name);
  return request;
}

v1::Operation Answer(const std::string& id) {
  v1::Operation operation;
  operation.set_id(id);
  return operation;
}

TEST(RequestLog, Find_SameRequest_GivesTheFirstAnswer) {
  RequestLog log;
  const absl::Time now = absl::FromUnixSeconds(1000);
  EXPECT_FALSE(log.Find("r", Delete("a"), now)->has_value());
  log.Remember("r", Delete("a"), Answer("op-1"), now);
  EXPECT_EQ((*log.Find("r", Delete("a"), now))->id(), "op-1");
}

TEST(RequestLog, Find_OtherRequest_IsRefused) {
  RequestLog log;
  const absl::Time now = absl::FromUnixSeconds(1000);
  log.Remember("r", Delete("a"), Answer("op-1"), now);
  EXPECT_EQ(log.Find("r", Delete("b"), now).status().code(), absl::StatusCode::kAlreadyExists);
  v1::DescribeEngineRequest same_bytes;  // name is field 1 here; the type counts as well
  EXPECT_EQ(log.Find("r", same_bytes, now).status().code(), absl::StatusCode::kAlreadyExists);
}

TEST(RequestLog, Find_AfterADay_HasForgotten) {
  RequestLog log;
  const absl::Time now = absl::FromUnixSeconds(1000);
  log.Remember("r", Delete("a"), Answer("op-1"), now);
  EXPECT_TRUE(log.Find("r", Delete("a"), now + absl::Hours(24))->has_value());
  EXPECT_FALSE(log.Find("r", Delete("b"), now + absl::Hours(24) + absl::Seconds(1))->has_value());
}

TEST(RequestLog, Remember_TooMany_ForgetsTheOldest) {
  RequestLog log;
  const absl::Time now = absl::FromUnixSeconds(1000);
  for (size_t i = 0; i <= RequestLog::kMost; ++i) {
    log.Remember(absl::StrCat("r", i), Delete("a"), Answer("op-1"), now);
  }
  EXPECT_FALSE(log.Find("r0", Delete("a"), now)->has_value());
  EXPECT_TRUE(log.Find("r1", Delete("a"), now)->has_value());
}

}  // namespace
}  // namespace regroup
