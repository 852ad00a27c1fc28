#include "client/picture.h"

#include <algorithm>
#include <set>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "client/errors.h"
#include "client/human.h"
#include "engine/layout/rank_list.h"

namespace regroup {
namespace {

std::string WithoutPrefix(absl::string_view name, absl::string_view prefix) {
  absl::ConsumePrefix(&name, prefix);
  return std::string(name);
}

struct Mark {
  const char* text;
  const char* meaning;
  Color color;
};

constexpr Mark kTrainer = {"■ T", "trainer, sharded", Color::kBlue};
constexpr Mark kInference = {"● I", "inference, full weights", Color::kGreen};
constexpr Mark kChangingTrainer = {"□ T", "trainer, changing", Color::kYellow};
constexpr Mark kChangingInference = {"○ I", "inference, changing", Color::kYellow};
constexpr Mark kFailedTrainer = {"✗ T", "trainer, failed", Color::kRed};
constexpr Mark kFailedInference = {"✗ I", "inference, failed", Color::kRed};
constexpr char kLead[] = "*";
constexpr char kNothing[] = "·";

// In the order of the legend.
constexpr const Mark* kMarks[] = {&kTrainer,           &kInference,     &kChangingTrainer,
                                  &kChangingInference, &kFailedTrainer, &kFailedInference};

const Mark* MarkOf(const v1::Engine& engine) {
  const bool infer = engine.role() == v1::ROLE_INFER;
  switch (engine.state()) {
    case v1::ENGINE_STATE_READY:
      return infer ? &kInference : &kTrainer;
    case v1::ENGINE_STATE_FAILED:
      return infer ? &kFailedInference : &kFailedTrainer;
    default:
      return infer ? &kChangingInference : &kChangingTrainer;
  }
}

std::string Legend(const std::set<const Mark*>& used, bool color) {
  std::string legend;
  for (const Mark* mark : kMarks) {
    if (used.count(mark) == 0) continue;
    absl::StrAppend(&legend, Paint(mark->text, mark->color, color), " ", mark->meaning, "   ");
  }
  if (!used.empty()) absl::StrAppend(&legend, kLead, " its lead   ");
  absl::StrAppend(&legend, kNothing, " nothing");
  return legend;
}

}  // namespace

Cell StateCell(v1::RankState state) {
  const Color color = state == v1::RANK_STATE_READY  ? Color::kGreen
                      : state == v1::RANK_STATE_LOST ? Color::kRed
                                                     : Color::kYellow;
  return Cell(WithoutPrefix(v1::RankState_Name(state), "RANK_STATE_"), color);
}

Cell StateCell(v1::NodeState state) {
  const Color color = state == v1::NODE_STATE_READY ? Color::kGreen : Color::kRed;
  return Cell(WithoutPrefix(v1::NodeState_Name(state), "NODE_STATE_"), color);
}

Cell StateCell(v1::EngineState state) {
  const Color color = state == v1::ENGINE_STATE_READY    ? Color::kGreen
                      : state == v1::ENGINE_STATE_FAILED ? Color::kRed
                                                         : Color::kYellow;
  return Cell(WithoutPrefix(v1::EngineState_Name(state), "ENGINE_STATE_"), color);
}

std::string RoleName(v1::Role role) { return WithoutPrefix(v1::Role_Name(role), "ROLE_"); }

std::string RankList(const google::protobuf::RepeatedField<int>& ranks) {
  return FormatRankList(std::vector<int>(ranks.begin(), ranks.end()));
}

std::string NamedRanks(const google::protobuf::RepeatedField<int>& ranks) {
  return absl::StrCat(ranks.size() == 1 ? "rank " : "ranks ", RankList(ranks));
}

std::string StatusHeadline(const v1::GetStatusResponse& status) {
  const auto ready =
      std::count_if(status.ranks().begin(), status.ranks().end(),
                    [](const v1::Rank& rank) { return rank.state() == v1::RANK_STATE_READY; });
  std::string line =
      absl::StrCat(Plural(status.nodes_size(), "node"), " · ", Plural(status.ranks_size(), "rank"),
                   ", ", ready, " ready · ", Plural(status.engines_size(), "engine"));
  if (status.operations_size() > 0) {
    absl::StrAppend(&line, " · ", Plural(status.operations_size(), "operation"), " running");
  }
  return line;
}

std::string DrawPicture(const v1::GetStatusResponse& status, bool color) {
  Table table({{"rank", Align::kRight},
               {"node"},
               {"pid", Align::kRight},
               {"state"},
               {"memory", Align::kRight}});
  for (const v1::Engine& engine : status.engines()) {
    table.AddColumn({OneLine(engine.name())});
  }
  std::set<const Mark*> used;
  std::string notes;
  for (const v1::Rank& rank : status.ranks()) {
    std::vector<Cell> row = {absl::StrCat(rank.rank()), rank.node(),
                             rank.pid() == 0 ? "-" : absl::StrCat(rank.pid()),
                             StateCell(rank.state()), HumanBytes(rank.rss_bytes())};
    for (const v1::Engine& engine : status.engines()) {
      const auto& ranks = engine.ranks();
      if (std::find(ranks.begin(), ranks.end(), rank.rank()) == ranks.end()) {
        row.emplace_back(kNothing, Color::kDim);
        continue;
      }
      const Mark* mark = MarkOf(engine);
      used.insert(mark);
      const bool lead = engine.ranks(0) == rank.rank();
      row.emplace_back(absl::StrCat(mark->text, lead ? kLead : ""), mark->color);
    }
    table.AddRow(std::move(row));
    if (!rank.error().empty()) {
      const std::string name = absl::StrCat("rank ", rank.rank());
      absl::StrAppend(&notes, Paint("! ", Color::kRed, color),
                      absl::StartsWith(rank.error(), name) ? "" : name + ": ",
                      OneLine(rank.error()), "\n");
    }
  }
  for (const v1::Engine& engine : status.engines()) {
    if (engine.error().empty()) continue;
    absl::StrAppend(&notes, Paint("! ", Color::kRed, color), "engine ", OneLine(engine.name()),
                    ": ", OneLine(engine.error()), "\n");
  }
  if (table.empty()) return absl::StrCat("no ranks\n", notes);
  std::string picture = table.Render(color);
  if (status.engines_size() > 0) absl::StrAppend(&picture, Legend(used, color), "\n");
  return absl::StrCat(picture, notes);
}

std::string EngineTable(const v1::GetStatusResponse& status, bool color) {
  if (status.engines_size() == 0) return "";
  Table table({{"engine"},
               {"role"},
               {"state"},
               {"ranks"},
               {"generation", Align::kRight},
               {"step", Align::kRight},
               {"weights version", Align::kRight},
               {"activity"}});
  for (const v1::Engine& engine : status.engines()) {
    table.AddRow({engine.name(), RoleName(engine.role()), StateCell(engine.state()),
                  RankList(engine.ranks()), absl::StrCat(engine.generation()),
                  absl::StrCat(engine.step()), absl::StrCat(engine.weights_version()),
                  engine.activity().empty() ? "idle" : engine.activity()});
  }
  return table.Render(color);
}

}  // namespace regroup
