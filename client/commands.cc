#include "client/commands.h"

#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "client/errors.h"

namespace regroup {
namespace {

// CLI11 takes "--flag=" and "--flag ''" for a flag whose value is still to come.
absl::Status CheckNoneEmpty(int argc, const char* const* argv) {
  for (int i = 1; i < argc; ++i) {
    const absl::string_view argument = argv[i];
    const absl::string_view before = i > 1 ? argv[i - 1] : "";
    if (argument.empty() && absl::StartsWith(before, "-") && before != "--") {
      return UsageError(before, "", "followed by a value that is not empty");
    }
    if (argument.empty()) {
      return UsageError(
          absl::StrCat("word ", i, " after regroupctl is empty; allowed: a command, or its names"));
    }
    if (absl::StartsWith(argument, "-") && argument.find('=') == argument.size() - 1) {
      return UsageError(absl::StripSuffix(argument, "="), "",
                        "followed by a value that is not empty");
    }
  }
  return absl::OkStatus();
}

// The command as far as it was given.
const CLI::App* LastCommand(const CLI::App* app) {
  while (!app->get_subcommands().empty()) app = app->get_subcommands().front();
  return app;
}

// "regroupctl engine create --help"
std::string HelpOf(const CLI::App* app) {
  std::string command = "regroupctl";
  while (!app->get_subcommands().empty()) {
    app = app->get_subcommands().front();
    absl::StrAppend(&command, " ", app->get_name());
  }
  return absl::StrCat(command, " --help");
}

absl::Status ParseErrorStatus(const CLI::ParseError& error, const CLI::App* app) {
  const CLI::App* last = LastCommand(app);
  const auto choices = last->get_subcommands([](const CLI::App*) { return true; });
  if (choices.empty()) return UsageError(OneLine(error.what()));
  const std::string allowed = absl::StrJoin(
      choices, ", ", [](std::string* out, const CLI::App* choice) { *out += choice->get_name(); });
  const std::vector<std::string> rest = app->remaining(/*recurse=*/true);
  return UsageError("COMMAND", rest.empty() ? "" : OneLine(rest.front()),
                    absl::StrCat("one of ", allowed));
}

absl::Status WithHelp(const absl::Status& status, const CLI::App* app) {
  if (ExitCodeOf(status) != kExitUsage) return status;
  return UsageError(absl::StrCat(status.message(), " (see ", HelpOf(app), ")"));
}

}  // namespace

CLI::App* AddCommand(CLI::App* parent, const std::string& name, const std::string& help) {
  return parent->add_subcommand(name, help);
}

CLI::App* AddCommandGroup(CLI::App* parent, const std::string& name, const std::string& help) {
  // Exactly one: after it a word is never taken for a command, so an engine may be called "list".
  return parent->add_subcommand(name, help)->require_subcommand(1);
}

void AddCommands(CLI::App* app, Session* session) {
  app->require_subcommand(1);
  app->fallthrough();  // global flags may follow the command
  app->add_option("--server", session->server,
                  "HOST:PORT of the primary regroupd (default: $REGROUP_SERVER, 127.0.0.1:7070)");
  app->add_option("-o", session->output,
                  "table, or json: one object a call, one a line for streams");
  AddStatusCommands(app, session);
  CLI::App* engine = AddCommandGroup(app, "engine", "trainers and inference engines");
  AddCreateCommand(engine, session);
  AddEngineCommands(engine, session);
  AddMoveCommands(engine, session);
  AddTrainCommand(app, session);
  AddGenerateCommand(app, session);
  AddStorageCommands(app, session);
  AddOperationCommands(app, session);
}

absl::Status RunCommandLine(CLI::App* app, Session* session, int argc, const char* const* argv) {
  if (absl::Status status = CheckNoneEmpty(argc, argv); !status.ok()) {
    return WithHelp(status, app);
  }
  try {
    app->parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    session->Print(app->help());
    return session->printed();
  } catch (const CLI::ParseError& error) {
    return WithHelp(ParseErrorStatus(error, app), app);
  }
  absl::Status status = session->Configure();
  if (status.ok()) status = session->run();
  session->ClearProgress();
  // What was stopped because nothing could be printed any more, says so.
  if ((status.ok() || absl::IsCancelled(status)) && !session->printed().ok()) {
    status = session->printed();
  }
  return WithHelp(status, app);
}

}  // namespace regroup
