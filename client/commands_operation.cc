#include <memory>
#include <string>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "client/commands.h"
#include "client/errors.h"
#include "client/flags.h"
#include "client/human.h"
#include "client/operation_view.h"

namespace regroup {
namespace {

struct OperationOptions {
  std::string id;
  bool no_wait = false;
};

absl::Status RunOperationList(Session* session) {
  absl::StatusOr<Client*> client = session->Connect();
  if (!client.ok()) return client.status();
  const absl::StatusOr<v1::ListOperationsResponse> list = (*client)->ListOperations();
  if (!list.ok()) return list.status();
  if (session->json()) {
    session->PrintJson(*list);
  } else {
    const std::string table = OperationTable(list->operations(), session->color());
    session->Print(table.empty() ? "no operations\n" : table);
  }
  return absl::OkStatus();
}

std::string OneOperation(const v1::Operation& operation, bool color) {
  google::protobuf::RepeatedPtrField<v1::Operation> one;
  *one.Add() = operation;
  std::string view = OperationTable(one, color);
  if (!operation.detail().empty()) absl::StrAppend(&view, OneLine(operation.detail()), "\n");
  return view;
}

// Asking works, whatever became of the operation.
absl::Status RunOperationDescribe(const OperationOptions& o, Session* session) {
  FlagReader flags;
  const std::string id = flags.OperationId("ID", o.id);
  if (!flags.status().ok()) return flags.status();
  absl::StatusOr<Client*> client = session->Connect();
  if (!client.ok()) return client.status();
  const absl::StatusOr<v1::Operation> operation = (*client)->GetOperation(id);
  if (!operation.ok()) return operation.status();
  if (session->json()) {
    session->PrintJson(*operation);
  } else {
    session->Print(OneOperation(*operation, session->color()));
  }
  return absl::OkStatus();
}

// Ends as the operation does.
absl::Status RunWatch(const OperationOptions& o, Session* session) {
  FlagReader flags;
  v1::Operation operation;
  operation.set_id(flags.OperationId("ID", o.id));
  if (!flags.status().ok()) return flags.status();
  const absl::StatusOr<v1::Operation> ended =
      Follow(session, operation, [&](const v1::Operation& latest) {
        if (session->json()) session->PrintJson(latest);
      });
  if (!ended.ok()) return ended.status();
  if (!session->json()) session->Print(OneOperation(*ended, session->color()));
  return OutcomeOf(*ended);
}

// Done when the operation has ended because of it; one that was faster than the request is an
// error.
absl::Status RunCancel(const OperationOptions& o, Session* session) {
  FlagReader flags;
  v1::CancelOperationRequest request;
  request.set_id(flags.OperationId("ID", o.id));
  if (!flags.status().ok()) return flags.status();
  absl::StatusOr<Client*> client = session->Connect();
  if (!client.ok()) return client.status();
  absl::StatusOr<v1::Operation> operation = (*client)->CancelOperation(request);
  if (!operation.ok()) return operation.status();
  if (!o.no_wait) operation = Follow(session, *operation);
  if (!operation.ok()) return operation.status();
  if (session->json()) session->PrintJson(*operation);
  if (!operation->done()) {
    if (!session->json()) session->Print(absl::StrCat("operation ", o.id, " is asked to end\n"));
    return absl::OkStatus();
  }
  absl::Status outcome = OutcomeOf(*operation);
  if (outcome.ok()) {
    return absl::FailedPreconditionError(
        absl::StrCat("operation ", o.id, " had finished before it could be cancelled (",
                     OperationTitle(*operation), "; regroupctl operation describe ", o.id, ")"));
  }
  if (!absl::IsCancelled(outcome)) return outcome;
  if (!session->json()) {
    session->Print(absl::StrCat("operation ", o.id, " cancelled after ",
                                HumanSeconds(operation->seconds()), "\n"));
  }
  return absl::OkStatus();
}

}  // namespace

void AddOperationCommands(CLI::App* app, Session* session) {
  CLI::App* group = AddCommandGroup(app, "operation", "what runs and what ran");
  AddCommand(group, "list", "every operation that is kept, newest last")->callback([session] {
    session->run = [session] { return RunOperationList(session); };
  });
  const auto add = [group, session](const char* name, const char* help,
                                    absl::Status (*run)(const OperationOptions&, Session*)) {
    auto o = std::make_shared<OperationOptions>();
    CLI::App* command = AddCommand(group, name, help);
    command->add_option("ID", o->id, "the operation's id")->required();
    command->callback([=] { session->run = [=] { return run(*o, session); }; });
    return std::make_pair(command, o.get());
  };
  add("describe", "one operation", RunOperationDescribe);
  add("watch", "follows an operation to its end, and ends as it does", RunWatch);
  const auto [cancel, options] = add("cancel", "asks a running operation to end", RunCancel);
  cancel->add_flag("--no-wait", options->no_wait, "print the operation at once");
}

}  // namespace regroup
