#include <memory>
#include <string>

#include "CLI/CLI.hpp"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/commands.h"
#include "client/flags.h"
#include "client/operation_view.h"

namespace regroup {
namespace {

struct StorageOptions {
  std::string name, directory;
  bool no_wait = false;
};

template <class Request>
absl::Status ReadRequest(const StorageOptions& o, Request* request) {
  FlagReader flags;
  request->set_name(flags.Name("NAME", o.name));
  request->set_directory(flags.Path("DIR", o.directory));
  return flags.status();
}

absl::Status RunExport(const StorageOptions& o, Session* session) {
  v1::ExportEngineRequest request;
  if (absl::Status status = ReadRequest(o, &request); !status.ok()) return status;
  absl::StatusOr<Client*> client = session->Connect();
  if (!client.ok()) return client.status();
  return FinishMutation(
      session, (*client)->ExportEngine(request), o.no_wait, [&](const v1::Operation& operation) {
        const bool said = absl::StrContains(operation.detail(), request.directory());
        return Sentence(absl::StrCat("engine ", o.name, " exported",
                                     said ? "" : absl::StrCat(" to ", request.directory())),
                        operation);
      });
}

absl::Status RunCheckpoint(const StorageOptions& o, bool save, Session* session) {
  v1::CheckpointRequest request;
  if (absl::Status status = ReadRequest(o, &request); !status.ok()) return status;
  absl::StatusOr<Client*> client = session->Connect();
  if (!client.ok()) return client.status();
  const absl::StatusOr<v1::Operation> accepted =
      save ? (*client)->SaveCheckpoint(request) : (*client)->LoadCheckpoint(request);
  return FinishMutation(session, accepted, o.no_wait, [&](const v1::Operation& operation) {
    return Sentence(
        absl::StrCat("engine ", o.name, save ? " saved to " : " loaded from ", request.directory()),
        operation);
  });
}

std::shared_ptr<StorageOptions> AddFlags(CLI::App* command) {
  auto o = std::make_shared<StorageOptions>();
  command->add_option("NAME", o->name, "the engine's name")->required();
  command->add_option("DIR", o->directory, "a folder of the daemons' machines")->required();
  command->add_flag("--no-wait", o->no_wait, "print the operation at once");
  return o;
}

}  // namespace

void AddStorageCommands(CLI::App* app, Session* session) {
  CLI::App* checkpoint = AddCommandGroup(app, "checkpoint", "a trainer's whole state on disk");
  CLI::App* save = AddCommand(checkpoint, "save", "writes a checkpoint");
  save->callback([o = AddFlags(save), session] {
    session->run = [o, session] { return RunCheckpoint(*o, /*save=*/true, session); };
  });
  CLI::App* load = AddCommand(checkpoint, "load", "reads a checkpoint");
  load->callback([o = AddFlags(load), session] {
    session->run = [o, session] { return RunCheckpoint(*o, /*save=*/false, session); };
  });
  CLI::App* export_command = AddCommand(app, "export", "writes config.json and model.safetensors");
  export_command->callback([o = AddFlags(export_command), session] {
    session->run = [o, session] { return RunExport(*o, session); };
  });
}

}  // namespace regroup
