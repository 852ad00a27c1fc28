#include "daemon/control/restore.h"

#include "daemon/control/operation_table.h"
#include "daemon/control/request_log.h"
#include "daemon/node/private_dir.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/rpc_status.h"

namespace regroup {
namespace {

using ::testing::HasSubstr;
using Step = RestoreDecision::Step;
using Known = MemberReport::Known;

// A trainer on ranks 2 and 4 of nodes b and c, at generation 3, found whole at step 5.
class RestoreTest : public ::testing::Test {
 protected:
  RestoreTest() {
    engine_.uid = 9;
    engine_.generation = 3;
    for (const auto& [rank, node] : {std::pair<int, std::string>{2, "b"}, {4, "c"}}) {
      engine_.spec.mutable_layout()->add_ranks(rank);
      engine_.members.push_back({rank, static_cast<uint64_t>(rank)});
      MemberReport& report = reports_.emplace_back();
      report.member = engine_.members.back();
      report.node = node;
      report.known = Known::kHolds;
      report.held.set_uid(9);
      v1::Standing& standing = *report.held.mutable_standing();
      standing.set_formed(true);
      standing.add_ranks(2);
      standing.add_ranks(4);
      standing.set_step(5);
      standing.set_data_position(5);
      standing.set_weights_version(6);
    }
  }

  v1::Standing& standing(size_t i) { return *reports_[i].held.mutable_standing(); }

  RestoreDecision Decide(bool sync_decided = false) const {
    return DecideRestore(engine_, reports_,
                         [sync_decided](const v1::PendingMove&) { return sync_decided; });
  }

  void Expect(Step step, const std::vector<size_t>& members = {}) const {
    const RestoreDecision decision = Decide();
    EXPECT_EQ(decision.step, step) << decision.status;
    EXPECT_EQ(decision.members, members);
  }

  void ExpectFailed(const std::string& words) const {
    Expect(Step::kFail);
    EXPECT_THAT(Decide().status.message(), HasSubstr(words));
    EXPECT_EQ(DetailOf(Decide().status)->reason(), v1::ERROR_REASON_RANK_LOST);
  }

  EngineRecord engine_;
  std::vector<MemberReport> reports_;
};

TEST_F(RestoreTest, Whole_IsReady) { Expect(Step::kReady); }

TEST_F(RestoreTest, NodeNotBack_IsWaitedForByName) {
  reports_[1].known = Known::kNothing;
  Expect(Step::kWait);
  EXPECT_THAT(Decide().status.message(), HasSubstr("node c has not joined again"));
  EXPECT_EQ(Decide().status.code(), absl::StatusCode::kUnavailable);
}

TEST_F(RestoreTest, MemberGone_FailsByRankWhoeverElseIsMissing) {
  reports_[0].known = Known::kNothing;
  reports_[1].known = Known::kGone;
  ExpectFailed("rank 4 ended");
  reports_[0].known = Known::kGone;
  ExpectFailed("ranks 2,4 ended");
}

TEST_F(RestoreTest, NotHeldOrBroken_Fails) {
  reports_[0].held.Clear();
  ExpectFailed("rank 2 did not hold it");
  reports_[0] = reports_[1];
  standing(1).set_failed(true);
  ExpectFailed("rank 4 did not hold it");
}

TEST_F(RestoreTest, OtherLayoutOrStep_Fails) {
  standing(1).set_formed(false);
  ExpectFailed("rank 4 held it in another layout");
  standing(1).set_formed(true);
  standing(0).add_ranks(7);
  ExpectFailed("rank 2 held it in another layout");
  standing(0).mutable_ranks()->RemoveLast();
  standing(1).set_step(6);
  ExpectFailed("rank 4 held another step");
}

TEST_F(RestoreTest, StepUnderWay_IsWaitedFor) {
  for (size_t i : {0, 1}) {
    standing(i).set_commands(1);
    standing(i).set_running("train_step");
  }
  Expect(Step::kWait);
  // One is done already.
  standing(1).set_commands(0);
  standing(1).set_running("");
  standing(1).set_step(6);
  standing(1).set_data_position(6);
  Expect(Step::kWait);
}

// A skipped step leaves the number of steps as it is: who ended it is not told again.
TEST_F(RestoreTest, SkippedStepUnderWay_IsWaitedFor) {
  standing(0).set_commands(1);
  standing(0).set_running("train_step");
  standing(1).set_data_position(6);
  Expect(Step::kWait);
}

TEST_F(RestoreTest, SyncOfTheEngineUnderWay_IsEnded) {
  standing(0).set_commands(1);
  standing(0).set_running("run_move");
  Expect(Step::kAbortMove, {0});
  standing(0).set_running("commit_move");
  Expect(Step::kWait);
}

TEST_F(RestoreTest, SyncIntoTheEngine_IsSettledBeforeItIsReady) {
  reports_[1].sync_pending = true;
  Expect(Step::kWait);
  EXPECT_THAT(Decide().status.message(), HasSubstr("sync"));
}

TEST_F(RestoreTest, MoveThatOneDidNotVerify_IsRolledBack) {
  for (size_t i : {0, 1}) {
    standing(i).mutable_move()->set_verified(i == 0);
    standing(i).mutable_move()->set_generation(3);
  }
  Expect(Step::kRollBack, {0, 1});
  standing(1).mutable_move()->set_verified(true);
  Expect(Step::kCommit, {0, 1});
}

// The primary died between telling one and telling the other.
TEST_F(RestoreTest, StepThatReachedOnlyOne_IsJoinedByTheOther) {
  standing(0).set_commands(1);
  standing(0).set_running("train_step");
  Expect(Step::kJoinStep, {1});
  // Told, but behind another engine's command.
  standing(1).set_commands(1);
  Expect(Step::kWait);
}

TEST_F(RestoreTest, UndecidedMove_IsEndedAndRolledBack) {
  engine_.was_moving = true;
  standing(0).set_commands(1);
  standing(0).set_running("run_move");
  standing(0).mutable_move()->set_generation(4);
  standing(1).mutable_move()->set_generation(4);
  Expect(Step::kAbortMove, {0});
  standing(0).set_commands(0);
  Expect(Step::kRollBack, {0, 1});
  standing(0).mutable_move()->set_verified(true);
  standing(1).mutable_move()->set_verified(true);
  Expect(Step::kRollBack, {0, 1});
  standing(0).clear_move();
  Expect(Step::kRollBack, {1});
}

TEST_F(RestoreTest, DecidedMove_IsCommittedWhereItIsNotYet) {
  standing(0).set_formed(false);  // a guest so far
  standing(0).mutable_move()->set_generation(3);
  standing(0).mutable_move()->set_verified(true);
  Expect(Step::kCommit, {0});
}

TEST_F(RestoreTest, Sync_IsSettledAsTheDestinationSays) {
  v1::PendingMove& move = *standing(1).mutable_move();
  move.set_generation(1);
  move.set_destination_uid(11);
  move.set_verified(true);
  EXPECT_EQ(Decide(true).step, Step::kCommit);
  EXPECT_EQ(Decide(false).step, Step::kRollBack);
  move.set_verified(false);
  EXPECT_EQ(Decide(true).step, Step::kRollBack);
}

v1::EngineSpec Spec(const std::string& name) {
  v1::EngineSpec spec;
  spec.set_name(name);
  return spec;
}

class StoredTest : public ::testing::Test {
 protected:
  StoredTest() : folder_(*PrivateDir::Make()), store_(*Store::Open(folder_.path())) {}

  const PrivateDir folder_;
  std::unique_ptr<Store> store_;
};

TEST_F(StoredTest, Engines_ComeBackInTheStateThatTheyWereIn) {
  uint64_t last = 0;
  {
    EngineRegistry engines(store_.get());
    std::vector<uint64_t> uids;
    for (const char* name : {"ready", "moving", "failed", "forming", "planned", "deleting"}) {
      uids.push_back(*engines.Add(Spec(name)));
      if (std::string(name) == "planned") continue;
      ASSERT_TRUE(engines
                      .Apply(uids.back(), EngineEvent::kForm,
                             [](EngineRecord& record) {
                               record.members = {{2, 77}};
                               record.fingerprint = "f";
                             })
                      .ok());
    }
    for (int i : {0, 1, 2, 5}) {
      ASSERT_TRUE(engines
                      .Apply(uids[i], EngineEvent::kFormed,
                             [](EngineRecord& record) { record.generation = 1; })
                      .ok());
    }
    ASSERT_TRUE(engines.Apply(uids[1], EngineEvent::kMove).ok());
    ASSERT_TRUE(engines
                    .Apply(uids[2], EngineEvent::kFail,
                           [](EngineRecord& record) {
                             record.failure = MakeError(absl::StatusCode::kUnavailable,
                                                        "rank 2 died", v1::ERROR_REASON_RANK_LOST);
                           })
                    .ok());
    ASSERT_TRUE(engines.Apply(uids[5], EngineEvent::kDelete).ok());
    ASSERT_TRUE(
        engines.Decide(uids[0], [](EngineRecord& record) { record.weights_version = 4; }).ok());
    engines.Update(uids[0], [](EngineRecord& record) { record.step = 99; });  // in memory only
    last = uids.back();
  }
  EngineRegistry engines(store_.get());
  ASSERT_TRUE(engines.Restore().ok());
  ASSERT_EQ(engines.List().size(), 3u);
  const EngineRecord ready = *engines.Find("ready");
  EXPECT_EQ(ready.state, v1::ENGINE_STATE_FORMING);
  EXPECT_TRUE(ready.restored);
  EXPECT_FALSE(ready.was_moving);
  EXPECT_EQ(ready.members, (std::vector<WorkerRef>{{2, 77}}));
  EXPECT_EQ(ready.generation, 1);
  EXPECT_EQ(ready.weights_version, 4);
  EXPECT_EQ(ready.step, 0);
  EXPECT_EQ(ready.fingerprint, "f");
  EXPECT_TRUE(engines.Find("moving")->was_moving);
  const EngineRecord failed = *engines.Find("failed");
  EXPECT_EQ(failed.state, v1::ENGINE_STATE_FAILED);
  EXPECT_EQ(failed.failure.message(), "rank 2 died");
  EXPECT_EQ(DetailOf(failed.failure)->reason(), v1::ERROR_REASON_RANK_LOST);
  EXPECT_GT(*engines.Add(Spec("planned")), last - 2) << "the name is free, the uid new";
  EXPECT_GT(*engines.Add(Spec("new")), last);
}

// A store that cannot be written stops what can be stopped, and nothing else.
TEST_F(StoredTest, Engines_ReadOnlyStore_RefusesDecisions) {
  EngineRegistry engines(store_.get());
  const uint64_t uid = *engines.Add(Spec("e"));
  ASSERT_TRUE(engines.Apply(uid, EngineEvent::kForm).ok());
  ASSERT_TRUE(engines.Apply(uid, EngineEvent::kFormed).ok());
  store_->RefuseWritesForTest();
  EXPECT_FALSE(engines.Apply(uid, EngineEvent::kMove).ok());
  EXPECT_EQ(engines.Get(uid)->state, v1::ENGINE_STATE_READY);
  EXPECT_FALSE(engines.Decide(uid, [](EngineRecord& record) { record.step = 3; }).ok());
  EXPECT_EQ(engines.Get(uid)->step, 0);
  EXPECT_TRUE(engines.Apply(uid, EngineEvent::kFail).ok());
  EXPECT_EQ(engines.Get(uid)->state, v1::ENGINE_STATE_FAILED);
}

// A daemon that stops decides nothing, and what befalls its engines then is forgotten.
TEST_F(StoredTest, Engines_FrozenStore_RefusesDecisionsAndDeletes) {
  uint64_t uid = 0;
  {
    EngineRegistry engines(store_.get());
    uid = *engines.Add(Spec("e"));
    ASSERT_TRUE(engines.Apply(uid, EngineEvent::kForm).ok());
    ASSERT_TRUE(engines.Apply(uid, EngineEvent::kFormed).ok());
    ASSERT_TRUE(engines.Apply(uid, EngineEvent::kMove).ok());
    store_->Freeze();
    EXPECT_TRUE(absl::IsUnavailable(engines.Apply(
        uid, EngineEvent::kMoved, [](EngineRecord& record) { record.generation = 9; })));
    EXPECT_EQ(engines.Get(uid)->generation, 0);
    EXPECT_TRUE(engines.Apply(uid, EngineEvent::kMoveFailed).ok());
    EXPECT_TRUE(absl::IsUnavailable(
        engines.Decide(uid, [](EngineRecord& record) { record.weights_version = 9; })));
    EXPECT_TRUE(absl::IsUnavailable(engines.Apply(uid, EngineEvent::kDelete)));
    EXPECT_EQ(engines.Get(uid)->state, v1::ENGINE_STATE_READY);
    EXPECT_TRUE(engines.Apply(uid, EngineEvent::kFail).ok());
  }
  EngineRegistry engines(store_.get());
  ASSERT_TRUE(engines.Restore().ok());
  const EngineRecord restored = *engines.Get(uid);
  EXPECT_EQ(restored.state, v1::ENGINE_STATE_FORMING);
  EXPECT_TRUE(restored.was_moving);
  EXPECT_EQ(restored.generation, 0);
}

TEST_F(StoredTest, Operations_ThatRanFailed_OthersStay) {
  {
    OperationTable table(store_.get());
    const std::string done = table.Start({"create", "e", {1}, nullptr});
    table.Finish(done, absl::OkStatus());
    const std::string bad = table.Start({"train", "e", {1}, nullptr});
    table.Finish(bad, MakeError(absl::StatusCode::kAborted, "no", v1::ERROR_REASON_DATA));
    EXPECT_EQ(table.Start({"train", "e", {1}, nullptr}), "op-3");
  }
  OperationTable table(store_.get());
  ASSERT_TRUE(table.Restore().ok());
  const std::vector<v1::Operation> operations = table.List();
  ASSERT_EQ(operations.size(), 3u);
  EXPECT_EQ(operations[0].error(), "");
  EXPECT_EQ(operations[1].error(), "no");
  EXPECT_EQ(operations[1].error_detail().reason(), v1::ERROR_REASON_DATA);
  EXPECT_EQ(operations[2].error(), "the primary restarted");
  EXPECT_EQ(operations[2].error_detail().reason(), v1::ERROR_REASON_CANCELLED);
  EXPECT_EQ(operations[2].error_detail().engine(), "e");
  for (const v1::Operation& operation : operations) EXPECT_TRUE(operation.done());
  EXPECT_TRUE(table.Running().empty());
  EXPECT_EQ(table.Start({"train", "e", {1}, nullptr}), "op-4");
}

TEST_F(StoredTest, Requests_AreAnsweredOnceOverARestart) {
  v1::DeleteEngineRequest request;
  request.set_name("e");
  v1::Operation answer;
  answer.set_id("op-1");
  const absl::Time now = absl::Now();
  {
    RequestLog log(store_.get());
    log.Remember("old", request, answer, now - absl::Hours(25));
    log.Remember("r", request, answer, now);
  }
  RequestLog log(store_.get());
  ASSERT_TRUE(log.Restore().ok());
  const auto found = log.Find("r", request, now);
  ASSERT_TRUE(found.ok() && found->has_value());
  EXPECT_EQ((*found)->id(), "op-1");
  EXPECT_FALSE((*log.Find("old", request, now)).has_value());
  request.set_name("other");
  EXPECT_EQ(log.Find("r", request, now).status().code(), absl::StatusCode::kAlreadyExists);
}

}  // namespace
}  // namespace regroup
