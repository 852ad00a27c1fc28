// A trainer moves between ranks in memory, and nothing of it changes.
#include <gtest/gtest.h>

#include <ostream>
#include <string>
#include <vector>

#include "tests/system/cli.h"
#include "tests/system/fixtures.h"

namespace regroup::harness {
namespace {

using Steps = std::vector<StepRecord>;
using Names = std::vector<std::string>;

TrainArgs Text(int64_t steps) { return {Data().text.path, steps, 5, kSeq, {}}; }

struct Route {
  std::string name;
  std::string from;
  std::string to;
  bool tied = false;
};

void PrintTo(const Route& route, std::ostream* out) { *out << route.from << " to " << route.to; }

class RelayoutTest : public FixtureTest {
 protected:
  static void SetUpTestSuite() { StartDaemonOnFixtures(4); }

  static const LlamaFixture& Model(bool tied) { return tied ? Data().tied : Data().untied; }

  static void Create(const std::string& name, const std::string& ranks, bool tied = false) {
    cli().Create(name, ranks, Model(tied).folder, OptimizerFlags(AdamW()));
  }
};

class RouteTest : public RelayoutTest, public ::testing::WithParamInterface<Route> {};

// The round trip is the identity: in the exported bytes, and, for moments, step and data position,
// in every bit of the steps that follow.
TEST_P(RouteTest, Relayout_ThereAndBack_IsTheIdentity) {
  const Route& route = GetParam();
  Create("still", route.from, route.tied);
  const Steps first = cli().Train("still", Text(2));
  const Steps then = cli().Train("still", Text(2));
  const TensorMap end = cli().Export("still");
  cli().Delete("still");

  Create("moved", route.from, route.tied);
  EXPECT_EQ(cli().Train("moved", Text(2)), first);
  const TensorMap before = cli().Export("moved");
  cli().Relayout("moved", route.to);
  EXPECT_EQ(Differences(cli().Export("moved"), before), Names{});
  cli().Relayout("moved", route.from);
  EXPECT_EQ(Differences(cli().Export("moved"), before), Names{});
  EXPECT_EQ(cli().Train("moved", Text(2)), then);
  EXPECT_EQ(Differences(cli().Export("moved"), end), Names{});
}

// Training goes on in the new layout as one process would have gone on.
TEST_P(RouteTest, Train_AfterRelayout_MatchesPlainTorch) {
  const Route& route = GetParam();
  Create("e", route.from, route.tied);
  Steps steps = cli().Train("e", Text(2));
  cli().Relayout("e", route.to);
  for (const StepRecord& step : cli().Train("e", Text(2))) steps.push_back(step);
  ReferenceRun reference(Model(route.tied), Data().text, AdamW());
  ExpectSteps(steps, reference.Train(4, 5));
  ExpectWeights(cli().Export("e"), reference.weights(), AdamW(), 4);
}

INSTANTIATE_TEST_SUITE_P(
    All, RouteTest,
    ::testing::Values(Route{"Shrink", "0-3", "0-1"}, Route{"Grow", "0", "0-3"},
                      Route{"OntoTheIdleRank", "1-2", "0-2"}, Route{"Disjoint", "0-1", "2-3"},
                      Route{"Overlap", "0-1", "1-2"}, Route{"ToOneOutside", "0-2", "3"},
                      Route{"Reorder", "0,2", "2,0"}, Route{"TiedOverlap", "0,2", "2-3,1", true}),
    [](const auto& info) { return info.param.name; });

TEST_F(RelayoutTest, Relayout_FourTwoFour_CarriesStepAndDataPosition) {
  Create("e", "0-3");
  cli().Train("e", Text(3));
  const nlohmann::json before = cli().Row("e");
  EXPECT_EQ(before["generation"], 1);
  const nlohmann::json operation = cli().Relayout("e", "0-1");
  EXPECT_EQ(operation["kind"], "relayout");
  EXPECT_EQ(operation["done"], true);
  EXPECT_EQ(operation["error"], "");
  EXPECT_GT(operation["bytesMoved"], 0);
  nlohmann::json row = cli().Row("e");
  EXPECT_EQ(row["generation"], 2);
  EXPECT_EQ(row["ranks"], (std::vector<int>{0, 1}));
  for (const char* field : {"step", "dataPosition", "weightsVersion", "state"}) {
    EXPECT_EQ(row[field], before[field]) << field;
  }
  cli().Relayout("e", "0-3");
  row = cli().Row("e");
  EXPECT_EQ(row["generation"], 3);
  for (const char* field : {"ranks", "step", "dataPosition", "weightsVersion", "state"}) {
    EXPECT_EQ(row[field], before[field]) << field;
  }
  const nlohmann::json described = cli().Describe("e");
  EXPECT_EQ(described["groups"][0]["ranks"], (std::vector<int>{0, 1, 2, 3}));
}

TEST_F(RelayoutTest, Relayout_StaleGeneration_ChangesNothing) {
  Create("e", "0-1");
  cli().Train("e", Text(1));
  cli().Relayout("e", "1-2", {"--if-generation=1"});
  const nlohmann::json before = cli().Row("e");
  const CtlResult stale =
      cli().ctl().Run({"engine", "relayout", "e", "--ranks=0-3", "--if-generation=1"});
  EXPECT_EQ(stale.exit, 1) << stale.output;
  EXPECT_NE(stale.errors.find("generation"), std::string::npos) << stale.errors;
  EXPECT_EQ(cli().Row("e"), before);
  cli().Relayout("e", "0-3", {"--if-generation=2"});
  EXPECT_EQ(cli().Row("e")["generation"], 3);
}

// The ranks that were left are free: they hold nothing of the engine and can serve another.
TEST_F(RelayoutTest, Relayout_Away_LeavesTheOldRanksEmpty) {
  Create("e", "0-1");
  cli().Train("e", Text(1));
  cli().Relayout("e", "2-3");
  EXPECT_EQ(daemon().RankRow(0)["engines"].size(), 0u);
  EXPECT_EQ(daemon().RankRow(3)["engines"], (Names{"e"}));
  const nlohmann::json memory = cli().Describe("e")["memory"];
  ASSERT_EQ(memory.size(), 2u);
  EXPECT_EQ(memory[0]["rank"], 2);
  Create("other", "0-1");
  cli().Train("other", Text(1));
  cli().Delete("other");
  cli().Train("e", Text(1));
}

// A small staging bound cuts the copies into more pieces, and changes nothing.
TEST_F(RelayoutTest, Relayout_SmallStaging_MovesTheSameBytes) {
  Create("e", "0-3");
  cli().Train("e", Text(2));
  const TensorMap before = cli().Export("e");
  const auto moved = cli().Relayout("e", "0-1")["bytesMoved"].get<int64_t>();
  cli().Relayout("e", "0-3");
  EXPECT_EQ(cli().Relayout("e", "0-1", {"--staging-mb=1"})["bytesMoved"], moved);
  EXPECT_EQ(Differences(cli().Export("e"), before), Names{});
}

// Weights and both moments: what the new layout needs and the rank does not hold crosses, no byte
// more.
TEST_F(RelayoutTest, Relayout_Mlp_MovesWhatThePlanNeeds) {
  cli().Create("e", "0-1", kMlpSpec, OptimizerFlags(AdamW()));
  const TrainArgs rows = {Data().mlp_path, 3, 7, 0, {}};
  cli().Train("e", rows);
  const TensorMap before = cli().Export("e");
  const auto moved = cli().Relayout("e", "2-3")["bytesMoved"].get<int64_t>();
  EXPECT_EQ(moved, int64_t{18180} * 4 * 3);
  EXPECT_EQ(Differences(cli().Export("e"), before), Names{});
  const auto regrown = cli().Relayout("e", "2-3,0")["bytesMoved"].get<int64_t>();
  EXPECT_LT(regrown, moved);
  cli().Train("e", rows);
}

// Two clients move the same engine at once: one after the other, or one of them is refused.
TEST_F(RelayoutTest, Relayout_ByTwoClientsAtOnce_AreSerialised) {
  Create("e", "0-1");
  cli().Train("e", Text(1));
  const TensorMap before = cli().Export("e");
  int64_t generation = 1;
  for (int round = 0; round < 10 && !HasFailure(); ++round) {
    const auto a = cli().ctl().Start({"engine", "relayout", "e", "--ranks=1-3"});
    const auto b = cli().ctl().Start({"engine", "relayout", "e", "--ranks=0,2"});
    for (Process* move : {a.get(), b.get()}) {
      const CtlResult result = Collect(*move, absl::Seconds(30));
      EXPECT_TRUE(result.exit == 0 || result.exit == 1) << result.errors;
      if (result.exit == 0) ++generation;
    }
    const nlohmann::json row = cli().Row("e");
    EXPECT_EQ(row["state"], "READY");
    EXPECT_EQ(row["generation"], generation);
  }
  EXPECT_GE(generation, 11);
  EXPECT_EQ(Differences(cli().Export("e"), before), Names{});
}

// A relayout comes between two steps of a run that another client has going, or is refused; either
// way nothing is lost.
TEST_F(RelayoutTest, Relayout_WhileAnotherClientTrains_LosesNoStep) {
  Create("e", "0-1");
  constexpr int64_t kSteps = 60;
  const auto train = cli().ctl().Start(TrainCommand("e", Text(kSteps)));
  ASSERT_TRUE(WaitUntil(absl::Seconds(30), [&] { return !train->OutputLines().empty(); }));
  const CtlResult relayout = cli().ctl().Run({"engine", "relayout", "e", "--ranks=1-3"});
  const CtlResult result = Collect(*train);
  EXPECT_EQ(result.exit, 0) << result.errors;
  EXPECT_TRUE(relayout.exit == 0 || relayout.exit == 1) << relayout.errors;
  const nlohmann::json row = cli().Row("e");
  EXPECT_EQ(row["state"], "READY");
  EXPECT_EQ(row["step"], kSteps);
  EXPECT_EQ(row["generation"], relayout.exit == 0 ? 2 : 1);
  ReferenceRun reference(Data().untied, Data().text, AdamW());
  const std::vector<reference::Step> expected = reference.Train(3, 5);
  Steps first = ParseSteps(result);
  ASSERT_EQ(first.size(), static_cast<size_t>(kSteps));
  first.resize(3);
  ExpectSteps(first, expected);
  cli().Train("e", Text(1));
}

}  // namespace
}  // namespace regroup::harness
