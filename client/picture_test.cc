#include "client/picture.h"

#include <vector>

#include "gtest/gtest.h"

namespace regroup {
namespace {

v1::Rank* AddRank(int number, v1::GetStatusResponse* status) {
  v1::Rank* rank = status->add_ranks();
  rank->set_rank(number);
  rank->set_node("a");
  rank->set_pid(4000 + number);
  rank->set_state(v1::RANK_STATE_READY);
  rank->set_rss_bytes(100500000);
  return rank;
}

v1::Engine* AddEngine(const char* name, v1::Role role, const std::vector<int>& ranks,
                      v1::GetStatusResponse* status) {
  v1::Engine* engine = status->add_engines();
  engine->set_name(name);
  engine->set_role(role);
  engine->set_state(v1::ENGINE_STATE_READY);
  engine->mutable_ranks()->Add(ranks.begin(), ranks.end());
  engine->set_generation(2);
  engine->set_step(4);
  engine->set_weights_version(5);
  return engine;
}

v1::GetStatusResponse Story() {
  v1::GetStatusResponse status;
  status.add_nodes()->set_node("a");
  for (int rank = 0; rank < 4; ++rank) AddRank(rank, &status);
  AddEngine("actor", v1::ROLE_TRAIN, {2, 1}, &status)->set_activity("train");
  AddEngine("rollout", v1::ROLE_INFER, {3}, &status);
  return status;
}

TEST(Picture, RanksByEngines_FilledWhereTheEngineLies) {
  EXPECT_EQ(DrawPicture(Story(), false),
            "rank  node   pid  state    memory  actor  rollout\n"
            "   0  a     4000  READY  100.5 MB  ·      ·\n"
            "   1  a     4001  READY  100.5 MB  ■ T    ·\n"
            "   2  a     4002  READY  100.5 MB  ■ T*   ·\n"
            "   3  a     4003  READY  100.5 MB  ·      ● I*\n"
            "■ T trainer, sharded   ● I inference, full weights   * its lead   · nothing\n");
}

TEST(Picture, FailuresAndChanges_AreMarkedAndExplained) {
  v1::GetStatusResponse status = Story();
  status.mutable_ranks(2)->set_state(v1::RANK_STATE_STARTING);
  status.mutable_ranks(2)->set_error("killed by signal 9");
  status.mutable_engines(0)->set_state(v1::ENGINE_STATE_FAILED);
  status.mutable_engines(0)->set_error("rank 2 was lost");
  status.mutable_engines(1)->set_state(v1::ENGINE_STATE_FORMING);
  const std::string picture = DrawPicture(status, false);
  EXPECT_NE(picture.find("✗ T*"), std::string::npos) << picture;
  EXPECT_NE(picture.find("○ I*"), std::string::npos) << picture;
  EXPECT_NE(picture.find("✗ T trainer, failed"), std::string::npos) << picture;
  EXPECT_NE(picture.find("! rank 2: killed by signal 9\n"), std::string::npos) << picture;
  status.mutable_ranks(2)->set_error("rank 2 (pid 7) was killed");
  EXPECT_NE(DrawPicture(status, false).find("\n! rank 2 (pid 7) was killed\n"), std::string::npos);
  EXPECT_NE(picture.find("! engine actor: rank 2 was lost\n"), std::string::npos) << picture;
}

TEST(Picture, NothingThere_IsSaid) {
  EXPECT_EQ(DrawPicture(v1::GetStatusResponse(), false), "no ranks\n");
  EXPECT_EQ(EngineTable(v1::GetStatusResponse(), false), "");
  EXPECT_EQ(StatusHeadline(v1::GetStatusResponse()), "0 nodes · 0 ranks, 0 ready · 0 engines");
}

TEST(Picture, NoEngines_NoLegend) {
  v1::GetStatusResponse status;
  AddRank(0, &status)->set_pid(0);
  EXPECT_EQ(DrawPicture(status, false),
            "rank  node  pid  state    memory\n"
            "   0  a       -  READY  100.5 MB\n");
}

TEST(Picture, Color_ChangesNoText) {
  std::string colored = DrawPicture(Story(), true);
  EXPECT_NE(colored.find('\x1b'), std::string::npos);
  for (size_t at = colored.find('\x1b'); at != std::string::npos; at = colored.find('\x1b')) {
    colored.erase(at, colored.find('m', at) - at + 1);
  }
  EXPECT_EQ(colored, DrawPicture(Story(), false));
}

TEST(Picture, EngineTable_HasALineAnEngine) {
  EXPECT_EQ(EngineTable(Story(), false),
            "engine   role   state  ranks  generation  step  weights version  activity\n"
            "actor    TRAIN  READY  2,1             2     4                5  train\n"
            "rollout  INFER  READY  3               2     4                5  idle\n");
}

TEST(Picture, Headline_CountsReadyRanksAndOperations) {
  v1::GetStatusResponse status = Story();
  status.mutable_ranks(0)->set_state(v1::RANK_STATE_LOST);
  status.add_operations();
  EXPECT_EQ(StatusHeadline(status), "1 node · 4 ranks, 3 ready · 2 engines · 1 operation running");
}

}  // namespace
}  // namespace regroup
