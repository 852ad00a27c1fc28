#include "daemon/control/operation_table.h"

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/rpc_status.h"

namespace regroup {
namespace {

OperationTable::Plan Plan(const std::string& kind, std::vector<uint64_t> uids = {},
                          std::shared_ptr<Cancellation> cancellation = nullptr) {
  return {kind, "actor", std::move(uids), std::move(cancellation)};
}

TEST(OperationTable, Finish_WithError_KeepsPhaseCodeAndDetail) {
  OperationTable table;
  const std::string id = table.Start(Plan("create"));
  table.Update(id, [](v1::Operation& operation) { operation.set_phase("form"); });
  EXPECT_EQ(table.Running().size(), 1u);
  table.Finish(id, MakeError(absl::StatusCode::kUnavailable, "gone", v1::ERROR_REASON_RANK_LOST));
  const v1::Operation operation = *table.Get(id);
  EXPECT_TRUE(operation.done());
  EXPECT_EQ(operation.phase(), "form");
  EXPECT_EQ(operation.error(), "gone");
  EXPECT_EQ(operation.error_code(), static_cast<int>(absl::StatusCode::kUnavailable));
  EXPECT_EQ(operation.error_detail().reason(), v1::ERROR_REASON_RANK_LOST);
  EXPECT_TRUE(table.Running().empty());
  table.Finish(id, absl::OkStatus());  // the first outcome stays
  EXPECT_EQ(table.Get(id)->error(), "gone");
}

TEST(OperationTable, Finish_Many_KeepsTheLastOnesAndAllThatRun) {
  OperationTable table;
  const std::string running = table.Start(Plan("train"));
  const std::string oldest = table.Start(Plan("create"));
  table.Finish(oldest, absl::OkStatus());
  for (size_t i = 0; i < OperationTable::kKept; ++i) {
    table.Finish(table.Start(Plan("create")), absl::OkStatus());
  }
  EXPECT_EQ(table.List().size(), OperationTable::kKept + 1);
  EXPECT_TRUE(table.Get(running).ok());
  EXPECT_EQ(table.Get(oldest).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(table.List().front().id(), running);
}

TEST(OperationTable, Get_MalformedIds_AreNotFound) {
  OperationTable table;
  table.Start(Plan("create"));
  for (const char* id : {"", "op-", "op-01", "1", "op-1 ", "op--1", "op-99999999999999999999"}) {
    EXPECT_EQ(table.Get(id).status().code(), absl::StatusCode::kNotFound) << id;
  }
}

TEST(OperationTable, Cancel_ReachesWhatRunsAndRefusesWhatIsDone) {
  OperationTable table;
  auto one = std::make_shared<Cancellation>();
  auto two = std::make_shared<Cancellation>();
  const std::string train = table.Start(Plan("train", {7}, one));
  const std::string sync = table.Start(Plan("sync", {7, 8}, two));
  const std::string erase = table.Start(Plan("delete", {7}));
  EXPECT_EQ(table.Cancel(erase, CancelledError("x")).status().code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(table.Cancel(train, CancelledError("by hand")).ok());
  EXPECT_EQ(one->status().message(), "by hand");
  EXPECT_TRUE(one->cancelled_by(CancelledBy::kRequest));
  table.CancelOn(9, CancelledError("other"));
  EXPECT_FALSE(two->cancelled());
  table.CancelOn(8, CancelledError("deleted"));
  EXPECT_EQ(two->status().message(), "deleted");
  table.Finish(train, one->status());
  EXPECT_EQ(table.Cancel(train, CancelledError("x")).status().code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(table.Cancel("op-77", CancelledError("x")).status().code(),
            absl::StatusCode::kNotFound);
}

TEST(OperationTable, Start_AfterCancelAll_IsCancelledAtOnce) {
  OperationTable table;
  table.CancelAll(StoppingError());
  auto late = std::make_shared<Cancellation>();
  table.Start(Plan("train", {7}, late));
  EXPECT_EQ(late->status(), StoppingError());
}

TEST(OperationTable, Watch_SeesEachNewVersionOnceAndTheEnd) {
  OperationTable table;
  const std::string id = table.Start(Plan("create"));
  std::vector<v1::Operation> seen;
  const auto keep = [&](const v1::Operation& operation) { seen.push_back(operation); };
  int64_t watch = 0;
  const auto first = *table.Watch(id, 0, keep, &watch);
  ASSERT_TRUE(first.has_value());
  ASSERT_FALSE(table.Watch(id, first->version(), keep, &watch)->has_value());
  table.Update(id, [](v1::Operation& operation) { operation.set_phase("form"); });
  table.Update(id, [](v1::Operation& operation) { operation.set_phase("load"); });
  ASSERT_EQ(seen.size(), 1u);  // called once; the next version is asked for again
  EXPECT_EQ(seen[0].phase(), "form");
  EXPECT_EQ((*table.Watch(id, seen[0].version(), keep, &watch))->phase(), "load");
  table.Finish(id, absl::OkStatus());
  const auto last =
      *table.Watch(id, 1000, keep, &watch);  // a done one is returned whatever was seen
  ASSERT_TRUE(last.has_value());
  EXPECT_TRUE(last->done());
  EXPECT_EQ(table.Watch("op-9", 0, keep, &watch).status().code(), absl::StatusCode::kNotFound);
}

TEST(OperationTable, StopWatch_BeforeAChange_SilencesIt) {
  OperationTable table;
  const std::string id = table.Start(Plan("create"));
  int calls = 0;
  int64_t watch = 0;
  ASSERT_FALSE(table
                   .Watch(
                       id, 1, [&](const v1::Operation&) { ++calls; }, &watch)
                   ->has_value());
  EXPECT_TRUE(table.StopWatch(id, watch));
  table.Finish(id, absl::OkStatus());
  EXPECT_EQ(calls, 0);
  EXPECT_FALSE(table.StopWatch(id, watch));
}

}  // namespace
}  // namespace regroup
