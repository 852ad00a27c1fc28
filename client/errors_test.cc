#include "client/errors.h"

#include "gtest/gtest.h"
#include "proto/rpc_status.h"

namespace regroup {
namespace {

v1::ErrorDetail Detail(v1::ErrorReason reason) {
  v1::ErrorDetail detail;
  detail.set_reason(reason);
  detail.set_engine("actor");
  detail.set_generation(1);
  detail.add_ranks(1);
  detail.add_ranks(2);
  detail.set_group("dp");
  detail.set_phase("form");
  return detail;
}

TEST(Errors, ExitCode_SaysWhoFailed) {
  EXPECT_EQ(ExitCodeOf(absl::OkStatus()), 0);
  EXPECT_EQ(ExitCodeOf(absl::InternalError("x")), 1);
  EXPECT_EQ(ExitCodeOf(absl::InvalidArgumentError("x")), 1);
  EXPECT_EQ(ExitCodeOf(UsageError("--lr", "nan", "a number")), 2);
  EXPECT_EQ(ExitCodeOf(absl::UnavailableError("x")), 3);
  EXPECT_EQ(ExitCodeOf(absl::DeadlineExceededError("x")), 3);
}

TEST(Errors, ExitCode_ServerThatAnswers_IsNotGone) {
  EXPECT_EQ(ExitCodeOf(MakeError(absl::StatusCode::kUnavailable, "rank 1 is lost",
                                 v1::ERROR_REASON_RANK_LOST)),
            1);
  EXPECT_EQ(ExitCodeOf(MakeError(absl::StatusCode::kDeadlineExceeded, "barrier",
                                 v1::ERROR_REASON_TIMEOUT)),
            1);
  EXPECT_EQ(ExitCodeOf(NotAvailable("--tp")), 1);
}

TEST(Errors, ExitCode_RanksDisagree_IsFour) {
  EXPECT_EQ(ExitCodeOf(MakeError(absl::StatusCode::kAborted, "ranks disagree",
                                 v1::ERROR_REASON_RANKS_DISAGREE)),
            4);
}

TEST(Errors, Line_NamesWhatWhoAndWhereToLook) {
  EXPECT_EQ(ErrorLine(MakeError(absl::StatusCode::kAborted, "sizes differ",
                                Detail(v1::ERROR_REASON_RANKS_DISAGREE)),
                      "h:1"),
            "regroupctl: sizes differ (engine actor, group dp, ranks 1-2, phase form; regroupctl "
            "engine trace actor)");
  EXPECT_EQ(ErrorLine(MakeError(absl::StatusCode::kUnavailable, "rank 1 is lost",
                                Detail(v1::ERROR_REASON_RANK_LOST)),
                      "h:1"),
            "regroupctl: rank 1 is lost (engine actor, group dp, ranks 1-2, phase form; regroupctl "
            "rank list)");
  EXPECT_EQ(ErrorLine(MakeError(absl::StatusCode::kInternal, "engine actor, group dp: broken",
                                Detail(v1::ERROR_REASON_ENGINE_FAILED)),
                      "h:1"),
            "regroupctl: engine actor, group dp: broken (ranks 1-2, phase form; regroupctl engine "
            "describe actor)");
  EXPECT_EQ(ErrorLine(UsageError("--lr", "nan", "a number"), "h:1"),
            "regroupctl: --lr=nan: must be a number");
  EXPECT_EQ(ErrorLine(NotAvailable("--tp"), "h:1"),
            "regroupctl: not available in this version: --tp");
  EXPECT_EQ(ErrorLine(absl::UnavailableError("refused"), "h:1"),
            "regroupctl: no answer from h:1: refused (server; is a regroupd listening there? see "
            "--server and REGROUP_SERVER)");
}

// It was never formed, so there is nothing to describe.
TEST(Errors, Line_EngineThatCouldNotBeCreated_PointsAtTheStatus) {
  v1::ErrorDetail detail = Detail(v1::ERROR_REASON_MEMORY);
  detail.set_generation(0);
  EXPECT_EQ(ErrorLine(MakeError(absl::StatusCode::kResourceExhausted, "it needs more", detail), ""),
            "regroupctl: it needs more (engine actor, group dp, ranks 1-2, phase form; regroupctl "
            "status)");
}

TEST(Errors, Line_IsOneLineWithoutControlCharacters) {
  EXPECT_EQ(ErrorLine(absl::InternalError("a\n  b\x1b[2J\r\n"), "h:1"), "regroupctl: a b?[2J");
  EXPECT_EQ(ErrorLine(absl::InternalError(""), "h:1"), "regroupctl: INTERNAL");
}

TEST(Errors, LongValue_IsCut) {
  EXPECT_LT(UsageError("--lr", std::string(5000, 'x'), "a number").message().size(), 200);
}

}  // namespace
}  // namespace regroup
