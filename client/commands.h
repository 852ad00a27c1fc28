// The commands of regroupctl. Each function adds some to `app`; a command that is given on the
// command line sets session->run. Flags and values are those of the project's contract with
// scripts.
#ifndef CLIENT_COMMANDS_H_
#define CLIENT_COMMANDS_H_

#include <string>

#include "absl/status/status.h"
#include "client/session.h"

namespace CLI {
class App;
}  // namespace CLI

namespace regroup {

void AddStatusCommands(CLI::App* app, Session* session);    // status, node list, rank list
void AddCreateCommand(CLI::App* engine, Session* session);  // engine create
void AddEngineCommands(CLI::App* engine,
                       Session* session);  // engine list, describe, trace, set, delete
void AddMoveCommands(CLI::App* engine, Session* session);  // engine relayout, sync
void AddTrainCommand(CLI::App* app, Session* session);     // train
void AddGenerateCommand(CLI::App* app, Session* session);  // generate
void AddStorageCommands(CLI::App* app, Session* session);  // checkpoint save, load; export
void AddOperationCommands(CLI::App* app,
                          Session* session);  // operation list, describe, watch, cancel

// All of the above, and the global flags.
void AddCommands(CLI::App* app, Session* session);

// A command of `parent`, or, with `group`, one that only has commands of its own.
CLI::App* AddCommand(CLI::App* parent, const std::string& name, const std::string& help);
CLI::App* AddCommandGroup(CLI::App* parent, const std::string& name, const std::string& help);

// Parses the arguments and runs the command. Usage errors name the command's --help; --help itself
// is printed.
absl::Status RunCommandLine(CLI::App* app, Session* session, int argc, const char* const* argv);

}  // namespace regroup

#endif  // CLIENT_COMMANDS_H_
