// Training on rows of any length with masks is what plain libtorch computes from each row by
// itself.
#include <gtest/gtest.h>

#include <algorithm>
#include <ostream>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/system/cli.h"
#include "tests/system/fixtures.h"

namespace regroup::harness {
namespace {

using Rows = std::vector<reference::MaskedRow>;

constexpr int64_t kRows = 13;

// Lengths from 1 to kSeq + 1, each of them the longest of some batch; masks of every kind.
Rows SomeRows() {
  std::mt19937 random(11);
  Rows rows(kRows);
  for (int64_t r = 0; r < kRows; ++r) {
    const int64_t length = r == 3 ? 1 : r == 5 ? kSeq + 1 : 2 + random() % kSeq;
    rows[r].tokens = RandomTokens(length, SmallLlama{}.vocab, 20 + r);
    for (int64_t i = 0; i < length; ++i) {
      rows[r].counts.push_back(r % 4 == 0 || (r % 4 != 3 && random() % 3 > 0));  // 3, 7, 11: none
    }
  }
  return rows;
}

int64_t CountOf(const Rows& rows) {
  int64_t count = 0;
  for (const reference::MaskedRow& row : rows) {
    count += std::count(row.counts.begin() + 1, row.counts.end(), true);
  }
  return count;
}

// Rows whose tokens all count have no mask in the file; masks are numbers or booleans.
std::string WriteRows(const std::string& path, const Rows& rows) {
  std::string contents;
  for (size_t r = 0; r < rows.size(); ++r) {
    nlohmann::json line = {{"tokens", rows[r].tokens}};
    const std::vector<bool>& counts = rows[r].counts;
    if (std::count(counts.begin(), counts.end(), false) > 0 || r % 2 == 1) {
      line["mask"] = counts;
      if (r % 3 == 0) line["mask"] = std::vector<int>(counts.begin(), counts.end());
    }
    absl::StrAppend(&contents, line.dump(), "\n");
  }
  WriteFile(path, contents);
  return path;
}

struct Case {
  std::string name;
  std::string ranks;
  int64_t batch = 5;
  int64_t accumulate = 1;
  bool tied = false;
};

void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

class RowsTest : public FixtureTest {
 protected:
  static void SetUpTestSuite() { StartDaemonOnFixtures(3); }
};

class RowsParity : public RowsTest, public ::testing::WithParamInterface<Case> {};

TEST_P(RowsParity, Train_MaskedRows_MatchesEachRowByItself) {
  constexpr int64_t kSteps = 3;
  const Case& c = GetParam();
  const LlamaFixture& model = c.tied ? Data().tied : Data().untied;
  const Rows rows = SomeRows();
  const std::string path = WriteRows(DataPath(c.name + ".jsonl"), rows);
  cli().Create("e", c.ranks, model.folder, OptimizerFlags(AdamW()));
  const std::vector<StepRecord> steps = cli().Train(
      "e", {path, kSteps, c.batch, kSeq, {absl::StrCat("--accumulate=", c.accumulate)}});

  reference::Trainer trainer(ToWeights(model.weights), AdamW());
  std::vector<reference::Step> expected;
  ASSERT_EQ(static_cast<int64_t>(steps.size()), kSteps);
  for (int64_t i = 0; i < kSteps; ++i) {
    Rows drawn;
    for (const int64_t row : reference::BatchRows(i, c.batch, kRows)) drawn.push_back(rows[row]);
    EXPECT_EQ(steps[i].tokens, CountOf(drawn));
    expected.push_back(trainer.TrainStep([&](const reference::Weights& weights) {
      return reference::LlamaRowsLoss(ReferenceOf(model.shape), weights, drawn);
    }));
  }
  ExpectSteps(steps, expected);
  ExpectWeights(cli().Export("e"), trainer.weights(), AdamW(), kSteps);
}

INSTANTIATE_TEST_SUITE_P(All, RowsParity,
                         ::testing::Values(Case{"One", "1"}, Case{"Two", "1-2", 5, 1, true},
                                           Case{"Three", "0-2", 7},
                                           Case{"ThreeAccumulated", "2,0-1", 6, 4},
                                           Case{"TwoRowsOnThree", "0-2", 2}),
                         [](const auto& info) { return info.param.name; });

// Rows 0 and 1 have targets, 2 and 3 have none.
TEST_F(RowsTest, Train_BatchWithoutATarget_IsSkippedWithLossZero) {
  Rows rows(4);
  for (int64_t r = 0; r < 4; ++r) {
    rows[r].tokens = RandomTokens(6, SmallLlama{}.vocab, r);
    rows[r].counts.assign(6, r < 2);
    rows[r].counts[0] = true;  // the first token is never a target
  }
  const std::string path = WriteRows(DataPath("sparse.jsonl"), rows);
  cli().Create("e", "0-1", Data().untied.folder, OptimizerFlags(Sgd()));
  const std::vector<StepRecord> steps = cli().Train("e", {path, 3, 2, kSeq, {}});
  ASSERT_EQ(steps.size(), 3u);
  EXPECT_FALSE(steps[0].skipped);
  EXPECT_EQ(steps[0].tokens, 10);
  EXPECT_TRUE(steps[1].skipped);
  EXPECT_EQ(steps[1].loss, 0);
  EXPECT_EQ(steps[1].tokens, 0);
  EXPECT_EQ(steps[1].step, 1);
  EXPECT_NE(steps[1].reason, "");
  EXPECT_FALSE(steps[2].skipped);
  EXPECT_EQ(steps[2].step, 2);
  EXPECT_EQ(cli().Row("e")["dataPosition"], 3);
}

// Without clipping, skipped, and the first after a relayout: no field is left out, or left over
// from the step before.
TEST_F(RowsTest, Train_EveryRecord_HasAllFieldsOfItsOwnStep) {
  Rows rows(4);
  for (int64_t r = 0; r < 4; ++r) {
    rows[r].tokens = RandomTokens(6, SmallLlama{}.vocab, r);
    rows[r].counts.assign(6, r < 2);
  }
  const std::string path = WriteRows(DataPath("fields.jsonl"), rows);
  cli().Create("e", "0-1", Data().untied.folder, OptimizerFlags(Sgd(0.1)));
  std::vector<nlohmann::json> records =
      cli().ctl().MustRun(TrainCommand("e", {path, 2, 2, kSeq, {}})).rows();
  cli().ctl().MustRun({"engine", "set", "e", "--lr=0.01"});
  cli().Relayout("e", "0-2");
  records.push_back(cli().ctl().MustRun(TrainCommand("e", {path, 1, 2, kSeq, {}})).json());
  ASSERT_EQ(records.size(), 3u);
  for (size_t i = 0; i < records.size(); ++i) {
    const nlohmann::json& record = records[i];
    for (const char* field :
         {"step", "loss", "gradNorm", "tokens", "seconds", "skipped", "reason", "dataPosition",
          "learningRate", "operation", "dropped", "checkSeconds"}) {
      ASSERT_TRUE(record.contains(field)) << field << ": " << record;
    }
    EXPECT_GT(record["checkSeconds"], 0) << record;
    EXPECT_LE(record["checkSeconds"], record["seconds"]) << record;
    const bool skipped = i == 1;
    EXPECT_EQ(record["skipped"], skipped) << record;
    EXPECT_EQ(record["reason"] == "", !skipped) << record;
    EXPECT_EQ(record["step"], i == 2 ? 2 : 1) << record;
    EXPECT_EQ(record["dataPosition"], i + 1) << record;
    EXPECT_EQ(record["tokens"], skipped ? 0 : 10) << record;
    EXPECT_EQ(record["loss"] > 1, !skipped) << record;
    EXPECT_EQ(record["gradNorm"] > 0.01, !skipped) << record;
    EXPECT_EQ(record["learningRate"], i == 2 ? 0.01 : 0.1) << record;
    EXPECT_GT(record["seconds"], 0) << record;
    EXPECT_EQ(record["dropped"], 0) << record;
  }
  EXPECT_NE(records[2]["loss"], records[0]["loss"]);
  EXPECT_NE(records[2]["gradNorm"], records[0]["gradNorm"]);
  EXPECT_EQ(records[1]["operation"], records[0]["operation"]);
  EXPECT_NE(records[2]["operation"], records[0]["operation"]);
}

// The same tokens as a token file and as rows are the same training.
TEST_F(RowsTest, Train_FullRowsWithoutMasks_EqualATokenFile) {
  Rows rows(8);
  for (int64_t r = 0; r < 8; ++r) {
    const auto begin = Data().text.tokens.begin() + r * kSeq;
    rows[r].tokens.assign(begin, begin + kSeq + 1);
    rows[r].counts.assign(kSeq + 1, true);
  }
  const std::string path = WriteRows(DataPath("full.jsonl"), rows);
  cli().Create("a", "0-1", Data().tied.folder, OptimizerFlags(AdamW()));
  cli().Create("b", "0-1", Data().tied.folder, OptimizerFlags(AdamW()));
  EXPECT_EQ(cli().Train("a", {path, 2, 4, kSeq, {}}),
            cli().Train("b", {Data().text.path, 2, 4, kSeq, {}}));
}

}  // namespace
}  // namespace regroup::harness
