#include <limits>
#include <memory>
#include <string>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "client/commands.h"
#include "client/flags.h"
#include "client/layout_flags.h"
#include "client/operation_view.h"
#include "client/picture.h"

namespace regroup {
namespace {

constexpr int64_t kMaxStagingMb = 65536;

struct RelayoutOptions {
  std::string name, if_generation, staging_mb;
  LayoutTexts layout;
  bool dry_run = false, in_place = false, no_wait = false;
};

struct SyncOptions {
  std::string source, destination;
  bool no_wait = false;
};

absl::Status RunRelayout(const RelayoutOptions& o, Session* session) {
  FlagReader flags;
  v1::RelayoutEngineRequest request;
  request.set_name(flags.Name("NAME", o.name));
  ReadLayout(o.layout, &flags, request.mutable_layout());
  if (!o.if_generation.empty()) {
    request.set_expected_generation(
        flags.Int("--if-generation", o.if_generation, 1, std::numeric_limits<int64_t>::max()));
  }
  if (!o.staging_mb.empty()) {
    request.set_staging_bytes(flags.Int("--staging-mb", o.staging_mb, 1, kMaxStagingMb) << 20);
  }
  request.set_dry_run(o.dry_run);
  request.set_in_place(o.in_place);
  if (!flags.status().ok()) return flags.status();
  absl::StatusOr<Client*> client = session->Connect();
  if (!client.ok()) return client.status();
  return FinishMutation(
      session, (*client)->RelayoutEngine(request), o.no_wait, [&](const v1::Operation& operation) {
        return Sentence(
            absl::StrCat("engine ", o.name, " moved to ", NamedRanks(request.layout().ranks())),
            operation);
      });
}

absl::Status RunSync(const SyncOptions& o, Session* session) {
  FlagReader flags;
  v1::SyncEngineRequest request;
  request.set_source(flags.Name("SRC", o.source));
  request.set_destination(flags.Name("DST", o.destination));
  if (!flags.status().ok()) return flags.status();
  absl::StatusOr<Client*> client = session->Connect();
  if (!client.ok()) return client.status();
  return FinishMutation(
      session, (*client)->SyncEngine(request), o.no_wait, [&](const v1::Operation& operation) {
        return Sentence(absl::StrCat("weights of ", o.source, " copied into ", o.destination),
                        operation);
      });
}

}  // namespace

void AddMoveCommands(CLI::App* engine, Session* session) {
  auto move = std::make_shared<RelayoutOptions>();
  CLI::App* relayout =
      AddCommand(engine, "relayout", "moves a trainer to other ranks, in memory, with its state");
  relayout->add_option("NAME", move->name, "the engine's name")->required();
  AddLayoutFlags(relayout, &move->layout);
  relayout->add_flag("--dry-run", move->dry_run, "say what would move, move nothing");
  relayout->add_option("--if-generation", move->if_generation, "only if it has this generation");
  relayout->add_option("--staging-mb", move->staging_mb, "MiB a rank may stage (64)");
  relayout->add_flag("--in-place", move->in_place, "free old intervals as they are delivered");
  relayout->add_flag("--no-wait", move->no_wait, "print the operation at once");
  relayout->callback(
      [move, session] { session->run = [move, session] { return RunRelayout(*move, session); }; });

  auto copy = std::make_shared<SyncOptions>();
  CLI::App* sync = AddCommand(engine, "sync", "weights of a trainer into an inference engine");
  sync->add_option("SRC", copy->source, "the trainer")->required();
  sync->add_option("DST", copy->destination, "the inference engine")->required();
  sync->add_flag("--no-wait", copy->no_wait, "print the operation at once");
  sync->callback(
      [copy, session] { session->run = [copy, session] { return RunSync(*copy, session); }; });
}

}  // namespace regroup
