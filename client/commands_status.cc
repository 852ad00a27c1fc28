#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/commands.h"
#include "client/errors.h"
#include "client/human.h"
#include "client/operation_view.h"
#include "client/picture.h"
#include "client/table.h"

namespace regroup {
namespace {

// Prints one field of the status: {"nodes": [...]}, or `view` for people.
absl::Status RunList(Session* session, const char* field,
                     std::string (*view)(const v1::GetStatusResponse&, bool color)) {
  absl::StatusOr<Client*> client = session->Connect();
  if (!client.ok()) return client.status();
  const absl::StatusOr<v1::GetStatusResponse> status = (*client)->GetStatus();
  if (!status.ok()) return status.status();
  if (session->json()) {
    session->PrintJson(Json{{field, ToJson(*status)[field]}});
  } else {
    session->Print(view(*status, session->color()));
  }
  return absl::OkStatus();
}

std::string NodeView(const v1::GetStatusResponse& status, bool color) {
  Table table({{"node"}, {"address"}, {"state"}, {"ranks"}});
  for (const v1::Node& node : status.nodes()) {
    table.AddRow({node.node(), node.address(), StateCell(node.state()), RankList(node.ranks())});
  }
  return table.Render(color);
}

std::string RankView(const v1::GetStatusResponse& status, bool color) {
  Table table({{"rank", Align::kRight},
               {"node"},
               {"pid", Align::kRight},
               {"state"},
               {"memory", Align::kRight},
               {"engines"},
               {"ended"},
               {"previous end"}});
  for (const v1::Rank& rank : status.ranks()) {
    table.AddRow({absl::StrCat(rank.rank()), rank.node(), absl::StrCat(rank.pid()),
                  StateCell(rank.state()), HumanBytes(rank.rss_bytes()),
                  rank.engines().empty() ? "-" : absl::StrJoin(rank.engines(), " "),
                  TimeText(rank.ended()), Cell(rank.error(), Color::kRed)});
  }
  return table.Render(color);
}

absl::Status RunStatus(Session* session) {
  absl::StatusOr<Client*> client = session->Connect();
  if (!client.ok()) return client.status();
  const absl::StatusOr<v1::GetStatusResponse> status = (*client)->GetStatus();
  if (!status.ok()) return status.status();
  if (session->json()) {
    session->PrintJson(*status);
    return absl::OkStatus();
  }
  const bool color = session->color();
  std::string view = absl::StrCat(Paint(StatusHeadline(*status), Color::kBold, color), "\n\n",
                                  DrawPicture(*status, color));
  if (status->engines_size() > 0) absl::StrAppend(&view, "\n", EngineTable(*status, color));
  if (status->operations_size() > 0) absl::StrAppend(&view, "\n");
  for (const v1::Operation& operation : status->operations()) {
    absl::StrAppend(&view, OneLine(operation.id()), "  ", OperationProgress(operation), "\n");
  }
  session->Print(view);
  return absl::OkStatus();
}

}  // namespace

void AddStatusCommands(CLI::App* app, Session* session) {
  AddCommand(app, "status", "the whole cluster at a glance: ranks x engines, running operations")
      ->callback([session] { session->run = [session] { return RunStatus(session); }; });
  AddCommand(AddCommandGroup(app, "node", "machines with a regroupd"), "list", "every node")
      ->callback(
          [session] { session->run = [session] { return RunList(session, "nodes", NodeView); }; });
  AddCommand(AddCommandGroup(app, "rank", "worker processes"), "list", "every rank")
      ->callback(
          [session] { session->run = [session] { return RunList(session, "ranks", RankView); }; });
}

}  // namespace regroup
