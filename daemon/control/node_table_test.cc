#include "daemon/control/node_table.h"

#include "daemon/node/private_dir.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace regroup {
namespace {

using ::testing::HasSubstr;

NodeRecord Node(const std::string& name, int first, int ranks) {
  NodeRecord node;
  node.name = name;
  node.first_rank = first;
  node.ranks = ranks;
  return node;
}

NodeClaim Claim(const std::string& name, int ranks, absl::optional<int> first = absl::nullopt) {
  return {name, ranks, first};
}

void ExpectRefused(const absl::StatusOr<int>& placed, absl::StatusCode code,
                   const std::string& words) {
  EXPECT_EQ(placed.status().code(), code) << placed.status();
  EXPECT_THAT(placed.status().message(), HasSubstr(words));
}

TEST(PlaceNode, New_ComesAfterAllThatAreKnown) {
  EXPECT_EQ(*PlaceNode({}, Claim("a", 3)), 0);
  const std::vector<NodeRecord> known = {Node("a", 0, 2), Node("b", 10, 2), Node("c", 4, 1)};
  EXPECT_EQ(*PlaceNode(known, Claim("d", 3)), 12);
  EXPECT_EQ(*PlaceNode({Node("a", 0, 0)}, Claim("b", 2)), 0);
}

TEST(PlaceNode, FirstRank_IsTakenIfItIsFree) {
  const std::vector<NodeRecord> known = {Node("a", 0, 2), Node("b", 10, 2)};
  EXPECT_EQ(*PlaceNode(known, Claim("d", 8, 2)), 2);
  EXPECT_EQ(*PlaceNode(known, Claim("d", 0, 1)), 1);
  for (const auto& [first, ranks] : std::vector<std::pair<int, int>>{{2, 9}, {1, 1}, {11, 4}}) {
    ExpectRefused(PlaceNode(known, Claim("d", ranks, first)), absl::StatusCode::kAlreadyExists,
                  "--first-rank=");
  }
  ExpectRefused(PlaceNode(known, Claim("d", 2, 99999)), absl::StatusCode::kInvalidArgument,
                "--first-rank=99999");
  ExpectRefused(PlaceNode({Node("a", 0, 99999)}, Claim("b", 2)), absl::StatusCode::kInvalidArgument,
                "0 to 99999");
}

TEST(PlaceNode, Known_KeepsItsRanksOrIsRefused) {
  const std::vector<NodeRecord> known = {Node("a", 0, 2), Node("b", 2, 2), Node("c", 4, 1)};
  EXPECT_EQ(*PlaceNode(known, Claim("b", 2)), 2);
  EXPECT_EQ(*PlaceNode(known, Claim("b", 2, 2)), 2);
  ExpectRefused(PlaceNode(known, Claim("b", 3)), absl::StatusCode::kFailedPrecondition,
                "--ranks=3: node b has ranks 2-3 of this cluster; allowed: --ranks=2");
  ExpectRefused(PlaceNode(known, Claim("b", 2, 8)), absl::StatusCode::kFailedPrecondition,
                "--first-rank=8: node b has ranks 2-3");
  ExpectRefused(PlaceNode(known, Claim("c", 0)), absl::StatusCode::kFailedPrecondition, "rank 4");
}

TEST(NodeTable, Put_Again_ChangesWhereTheNodeIsAndNotItsRanks) {
  NodeTable table(Node("a", 0, 2));
  EXPECT_EQ(table.Put(Claim("b", 2), "h:1", 7)->first_rank, 2);
  EXPECT_EQ(table.Put(Claim("c", 1), "h:2", 8)->first_rank, 4);
  table.SetState("b", v1::NODE_STATE_LOST);
  EXPECT_EQ(table.Find("b")->state, v1::NODE_STATE_LOST);
  EXPECT_FALSE(table.Put(Claim("b", 3), "h:3", 9).ok());
  EXPECT_EQ(table.Find("b")->address, "h:1") << "a refusal changes nothing";
  EXPECT_EQ(table.Put(Claim("b", 2), "h:3", 9)->first_rank, 2);
  EXPECT_EQ(table.Find("b")->address, "h:3");
  EXPECT_EQ(table.Find("b")->incarnation, 9u);
  EXPECT_EQ(table.Find("b")->state, v1::NODE_STATE_READY);
  EXPECT_EQ(table.List().size(), 3u);
}

TEST(NodeTable, Restore_OtherNamesAndRanks_AreCheckedAgainstTheNodesThatJoined) {
  const PrivateDir folder = *PrivateDir::Make();
  const std::unique_ptr<Store> store = *Store::Open(folder.path());
  {
    NodeTable table(Node("a", 0, 2), store.get());
    ASSERT_TRUE(table.Restore().ok());
    ASSERT_TRUE(NodeTable(Node("z", 0, 9), store.get()).Restore().ok()) << "alone it may";
    ASSERT_EQ(table.Put(Claim("b", 2), "h:1", 7)->first_rank, 2);
  }
  ASSERT_TRUE(NodeTable(Node("a", 0, 2), store.get()).Restore().ok());
  const std::vector<StoredNode> before = *store->Nodes();
  struct Case {
    NodeRecord self;
    absl::StatusCode code;
    std::string words;
  };
  const std::vector<Case> cases = {
      {Node("a", 0, 3), absl::StatusCode::kFailedPrecondition, "--ranks=3: node a has ranks 0-1"},
      {Node("y", 0, 3), absl::StatusCode::kAlreadyExists,
       "--ranks=3 of --node=y, from rank 0: node b has ranks 2-3 of this cluster; allowed: ranks"},
      {Node("y", 3, 1), absl::StatusCode::kAlreadyExists, "from rank 3: node b has ranks 2-3"},
      {Node("b", 2, 2), absl::StatusCode::kAlreadyExists, "--node=b"},
      {Node("b", 8, 1), absl::StatusCode::kAlreadyExists, "allowed: a name that none"},
  };
  for (const Case& each : cases) {
    const absl::Status status = NodeTable(each.self, store.get()).Restore();
    EXPECT_EQ(status.code(), each.code) << status;
    EXPECT_THAT(status.message(), HasSubstr(each.words));
    const std::vector<StoredNode> after = *store->Nodes();
    ASSERT_EQ(after.size(), before.size()) << "a refusal changes nothing";
    for (size_t i = 0; i < after.size(); ++i) {
      EXPECT_EQ(after[i].name, before[i].name);
      EXPECT_EQ(after[i].ranks, before[i].ranks);
      EXPECT_EQ(after[i].self, before[i].self);
    }
  }
  for (const NodeRecord& self : {Node("y", 0, 2), Node("x", 4, 3), Node("w", 0, 0)}) {
    const absl::Status status = NodeTable(self, store.get()).Restore();
    EXPECT_TRUE(status.ok()) << status;
  }
}

TEST(Hearing, Silent_AfterTheLimit) {
  const absl::Time start = absl::UnixEpoch();
  Hearing hearing(absl::Seconds(4), start);
  for (int i = 1; i < 4; ++i) EXPECT_FALSE(hearing.Silent(start + absl::Seconds(i)));
  EXPECT_TRUE(hearing.Silent(start + absl::Seconds(4)));
  hearing.Heard(start + absl::Seconds(5));
  EXPECT_FALSE(hearing.Silent(start + absl::Seconds(6)));
}

// A primary that was stopped or starved has not listened.
TEST(Hearing, Silent_OwnPause_DoesNotCount) {
  const absl::Time start = absl::UnixEpoch();
  Hearing hearing(absl::Seconds(4), start);
  EXPECT_FALSE(hearing.Silent(start + absl::Seconds(3600)));
  EXPECT_FALSE(hearing.Silent(start + absl::Seconds(3601)));
  EXPECT_FALSE(hearing.Silent(start + absl::Seconds(3602)));
  EXPECT_TRUE(hearing.Silent(start + absl::Seconds(3603)));
}

}  // namespace
}  // namespace regroup
