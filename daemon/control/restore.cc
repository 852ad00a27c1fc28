#include "daemon/control/restore.h"

#include <algorithm>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/layout/rank_list.h"
#include "proto/rpc_status.h"

namespace regroup {
namespace {

using Step = RestoreDecision::Step;
using Known = MemberReport::Known;

constexpr char kTrainStep[] = "train_step";
constexpr absl::string_view kMoving[] = {"prepare_move", "agree_move", "run_move"};

std::string RanksText(const std::vector<int>& ranks) {
  return absl::StrCat(ranks.size() == 1 ? "rank " : "ranks ", FormatRankList(ranks));
}

RestoreDecision Wait(const std::string& what) {
  RestoreDecision decision;
  decision.status = MakeError(absl::StatusCode::kUnavailable, what, v1::ERROR_REASON_RANK_LOST);
  return decision;
}

RestoreDecision Fail(const std::vector<int>& ranks, const std::string& why) {
  v1::ErrorDetail detail;
  detail.set_reason(v1::ERROR_REASON_RANK_LOST);
  for (int rank : ranks) detail.add_ranks(rank);
  RestoreDecision decision;
  decision.step = Step::kFail;
  decision.status =
      MakeError(absl::StatusCode::kUnavailable, absl::StrCat(RanksText(ranks), " ", why), detail);
  return decision;
}

RestoreDecision Command(Step step, std::vector<size_t> members) {
  RestoreDecision decision;
  decision.step = step;
  decision.members = std::move(members);
  decision.status =
      MakeError(absl::StatusCode::kUnavailable,
                "what ran when the primary restarted is being ended", v1::ERROR_REASON_UNSPECIFIED);
  return decision;
}

// The ranks of the members for which `test` holds.
template <typename Test>
std::vector<int> RanksWhere(absl::Span<const MemberReport> members, Test test) {
  std::vector<int> ranks;
  for (const MemberReport& each : members) {
    if (test(each)) ranks.push_back(each.member.rank);
  }
  return ranks;
}

template <typename Test>
std::vector<size_t> IndicesWhere(absl::Span<const MemberReport> members, Test test) {
  std::vector<size_t> indices;
  for (size_t i = 0; i < members.size(); ++i) {
    if (test(members[i])) indices.push_back(i);
  }
  return indices;
}

const v1::Standing& StandingOf(const MemberReport& report) { return report.held.standing(); }

bool IsBusy(const MemberReport& report) { return StandingOf(report).commands() > 0; }

bool HasMove(const MemberReport& report) { return StandingOf(report).has_move(); }

RestoreDecision WaitForNodes(absl::Span<const MemberReport> members) {
  std::set<std::string> nodes;
  for (const MemberReport& each : members) {
    if (each.known == Known::kNothing) nodes.insert(each.node);
  }
  return Wait(absl::StrCat("node ", absl::StrJoin(nodes, ", "),
                           nodes.size() == 1 ? " has" : " have",
                           " not joined again since the primary restarted"));
}

// Commands of the earlier start are not over.
RestoreDecision EndCommands(const EngineRecord& engine, absl::Span<const MemberReport> members) {
  if (engine.was_moving) return Command(Step::kAbortMove, IndicesWhere(members, IsBusy));
  const std::vector<size_t> moving = IndicesWhere(members, [](const MemberReport& each) {
    const std::string& running = StandingOf(each).running();
    return std::find(std::begin(kMoving), std::end(kMoving), running) != std::end(kMoving);
  });
  if (!moving.empty()) return Command(Step::kAbortMove, moving);
  const auto in_step = [](const MemberReport& each) {
    return StandingOf(each).running() == kTrainStep;
  };
  const auto first = std::find_if(members.begin(), members.end(), in_step);
  if (first != members.end()) {
    // Before it. A skipped step counts there, too.
    const int64_t position = StandingOf(*first).data_position();
    std::vector<size_t> untold = IndicesWhere(members, [&](const MemberReport& each) {
      return !IsBusy(each) && StandingOf(each).data_position() == position;
    });
    if (!untold.empty()) return Command(Step::kJoinStep, std::move(untold));
  }
  return Wait("what ran when the primary restarted has not ended yet");
}

RestoreDecision SettleMove(const EngineRecord& engine, absl::Span<const MemberReport> members,
                           absl::FunctionRef<bool(const v1::PendingMove&)> decided) {
  const std::vector<size_t> pending = IndicesWhere(members, HasMove);
  const v1::PendingMove& move = StandingOf(members[pending.front()]).move();
  const bool verified = std::all_of(pending.begin(), pending.end(), [&](size_t i) {
    return StandingOf(members[i]).move().verified();
  });
  const bool commit =
      verified &&
      (move.destination_uid() != 0 ? decided(move) : move.generation() <= engine.generation);
  return Command(commit ? Step::kCommit : Step::kRollBack, pending);
}

}  // namespace

RestoreDecision DecideRestore(const EngineRecord& engine, absl::Span<const MemberReport> members,
                              absl::FunctionRef<bool(const v1::PendingMove&)> decided) {
  std::vector<int> bad =
      RanksWhere(members, [](const MemberReport& each) { return each.known == Known::kGone; });
  if (!bad.empty()) return Fail(bad, "ended when or since the primary restarted");
  const bool all_known = std::all_of(members.begin(), members.end(), [](const MemberReport& each) {
    return each.known == Known::kHolds;
  });
  if (!all_known) return WaitForNodes(members);
  bad = RanksWhere(members, [](const MemberReport& each) {
    return each.held.uid() == 0 || StandingOf(each).failed();
  });
  if (!bad.empty()) return Fail(bad, "did not hold it whole when the primary restarted");
  if (std::any_of(members.begin(), members.end(), IsBusy)) return EndCommands(engine, members);
  if (std::any_of(members.begin(), members.end(), HasMove)) {
    return SettleMove(engine, members, decided);
  }
  if (std::any_of(members.begin(), members.end(),
                  [](const MemberReport& each) { return each.sync_pending; })) {
    return Wait("a sync into it that ran when the primary restarted is being settled");
  }

  const v1::Standing& lead = StandingOf(members.front());
  const auto& layout = engine.spec.layout().ranks();
  bad = RanksWhere(members, [&](const MemberReport& each) {
    const v1::Standing& standing = StandingOf(each);
    return !standing.formed() || !std::equal(standing.ranks().begin(), standing.ranks().end(),
                                             layout.begin(), layout.end());
  });
  if (!bad.empty()) return Fail(bad, "held it in another layout when the primary restarted");
  bad = RanksWhere(members, [&](const MemberReport& each) {
    const v1::Standing& standing = StandingOf(each);
    return standing.step() != lead.step() || standing.data_position() != lead.data_position() ||
           standing.weights_version() != lead.weights_version();
  });
  if (!bad.empty()) {
    return Fail(bad, absl::StrCat("held another step or weights version than rank ",
                                  members.front().member.rank, " when the primary restarted"));
  }
  RestoreDecision ready;
  ready.step = Step::kReady;
  return ready;
}

}  // namespace regroup
