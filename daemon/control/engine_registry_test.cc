#include "daemon/control/engine_registry.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/rpc_status.h"

namespace regroup {
namespace {

using ::testing::HasSubstr;

v1::EngineSpec Spec(const std::string& name) {
  v1::EngineSpec spec;
  spec.set_name(name);
  return spec;
}

TEST(EngineRegistry, Add_SameNameTwice_IsRefusedUntilGone) {
  EngineRegistry registry;
  const uint64_t first = *registry.Add(Spec("actor"));
  EXPECT_EQ(registry.Add(Spec("actor")).status().code(), absl::StatusCode::kAlreadyExists);
  ASSERT_TRUE(registry.Apply(first, EngineEvent::kFormFailed).ok());
  EXPECT_TRUE(registry.List().empty());
  const uint64_t second = *registry.Add(Spec("actor"));
  EXPECT_NE(first, second);
  EXPECT_GT(static_cast<int64_t>(second), 0);
}

TEST(EngineRegistry, Find_UnknownName_NamesThoseThatExist) {
  EngineRegistry registry;
  EXPECT_THAT(registry.Find("x").status().message(), HasSubstr("none"));
  ASSERT_TRUE(DetailOf(registry.Find("x").status()).has_value());
  EXPECT_EQ(DetailOf(registry.Find("x").status())->engine(), "x");
  ASSERT_TRUE(registry.Add(Spec("actor")).ok());
  ASSERT_TRUE(registry.Add(Spec("rollout")).ok());
  EXPECT_THAT(registry.Find("x").status().message(), HasSubstr("actor, rollout"));
  EXPECT_EQ(registry.Find("actor")->spec.name(), "actor");
}

TEST(EngineRegistry, Apply_MeaninglessEvent_ChangesNothing) {
  EngineRegistry registry;
  const uint64_t uid = *registry.Add(Spec("actor"));
  const absl::Status status =
      registry.Apply(uid, EngineEvent::kMoved, [](EngineRecord& record) { record.generation = 9; });
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(registry.Get(uid)->generation, 0);
  EXPECT_EQ(registry.Get(uid)->state, v1::ENGINE_STATE_PLANNED);
}

TEST(EngineRegistry, Update_CannotChangeTheState) {
  EngineRegistry registry;
  const uint64_t uid = *registry.Add(Spec("actor"));
  registry.Update(uid, [](EngineRecord& record) {
    record.state = v1::ENGINE_STATE_READY;
    record.step = 4;
  });
  EXPECT_EQ(registry.Get(uid)->state, v1::ENGINE_STATE_PLANNED);
  EXPECT_EQ(registry.Get(uid)->step, 4);
}

}  // namespace
}  // namespace regroup
