#include <memory>
#include <string>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "client/commands.h"
#include "client/engine_view.h"
#include "client/errors.h"
#include "client/flags.h"
#include "client/layout_flags.h"
#include "client/operation_view.h"
#include "client/picture.h"
#include "proto/error_detail.h"

namespace regroup {
namespace {

struct EngineOptions {
  std::string name;
  bool flight = false, follow = false;  // trace
  std::string checks, timeout, lr;      // set; "" = not given
  bool no_wait = false;                 // set, delete
};

absl::Status RunEngineList(Session* session) {
  absl::StatusOr<Client*> client = session->Connect();
  if (!client.ok()) return client.status();
  const absl::StatusOr<v1::GetStatusResponse> status = (*client)->GetStatus();
  if (!status.ok()) return status.status();
  if (session->json()) {
    session->PrintJson(Json{{"engines", ToJson(*status)["engines"]}});
  } else {
    const std::string table = EngineTable(*status, session->color());
    session->Print(table.empty() ? "no engines\n" : table);
  }
  return absl::OkStatus();
}

absl::Status PrintEngine(const absl::StatusOr<v1::Engine>& engine, Session* session) {
  if (!engine.ok()) return engine.status();
  if (session->json()) {
    session->PrintJson(*engine);
  } else {
    session->Print(DescribeView(*engine, session->color()));
  }
  return absl::OkStatus();
}

absl::Status RunDescribe(const EngineOptions& o, Session* session) {
  FlagReader flags;
  const std::string name = flags.Name("NAME", o.name);
  if (!flags.status().ok()) return flags.status();
  absl::StatusOr<Client*> client = session->Connect();
  if (!client.ok()) return client.status();
  return PrintEngine((*client)->DescribeEngine(name), session);
}

absl::Status RunTrace(const EngineOptions& o, Session* session) {
  FlagReader flags;
  v1::TraceEngineRequest request;
  request.set_name(flags.Name("NAME", o.name));
  request.set_flight(o.flight);
  if (!flags.status().ok()) return flags.status();
  if (o.follow) return NotAvailable("--follow");
  absl::StatusOr<Client*> client = session->Connect();
  if (!client.ok()) return client.status();
  const absl::StatusOr<v1::EngineTrace> trace = (*client)->TraceEngine(request);
  if (!trace.ok()) return trace.status();
  if (session->json()) {
    session->PrintJson(*trace);
  } else {
    session->Print(TraceView(*trace, session->color()));
  }
  return absl::OkStatus();
}

absl::Status RunSet(const EngineOptions& o, Session* session) {
  FlagReader flags;
  v1::SetEngineRequest request;
  request.set_name(flags.Name("NAME", o.name));
  if (o.checks.empty() && o.timeout.empty() && o.lr.empty()) {
    flags.Fail(UsageError("nothing to set: give --checks, --timeout or --lr"));
  }
  if (!o.checks.empty()) request.set_checks(ReadChecks(o.checks, &flags));
  if (!o.timeout.empty()) {
    SetDuration(flags.Timeout("--timeout", o.timeout), request.mutable_timeout());
  }
  if (!o.lr.empty()) request.set_learning_rate(flags.Number("--lr", o.lr, kPositive));
  if (!flags.status().ok()) return flags.status();
  absl::StatusOr<Client*> client = session->Connect();
  if (!client.ok()) return client.status();
  return FinishMutation(session, (*client)->SetEngine(request), o.no_wait,
                        [&](const v1::Operation& operation) {
                          return Sentence(absl::StrCat("engine ", o.name, " changed"), operation);
                        });
}

absl::Status RunDelete(const EngineOptions& o, Session* session) {
  FlagReader flags;
  v1::DeleteEngineRequest request;
  request.set_name(flags.Name("NAME", o.name));
  if (!flags.status().ok()) return flags.status();
  absl::StatusOr<Client*> client = session->Connect();
  if (!client.ok()) return client.status();
  return FinishMutation(session, (*client)->DeleteEngine(request), o.no_wait,
                        [&](const v1::Operation& operation) {
                          return Sentence(absl::StrCat("engine ", o.name, " deleted"), operation);
                        });
}

}  // namespace

void AddEngineCommands(CLI::App* engine, Session* session) {
  AddCommand(engine, "list", "every engine")->callback([session] {
    session->run = [session] { return RunEngineList(session); };
  });
  const auto add = [engine, session](const char* name, const char* help,
                                     absl::Status (*run)(const EngineOptions&, Session*)) {
    auto o = std::make_shared<EngineOptions>();
    CLI::App* command = AddCommand(engine, name, help);
    command->add_option("NAME", o->name, "the engine's name")->required();
    command->callback([=] { session->run = [=] { return run(*o, session); }; });
    return std::make_pair(command, o.get());
  };
  add("describe", "one engine with its groups and memory", RunDescribe);
  const auto [trace, trace_options] =
      add("trace", "the recorded order of units, per kind of pass", RunTrace);
  trace->add_flag("--flight", trace_options->flight, "the flight recorder instead");
  trace->add_flag("--follow", trace_options->follow, "stream changes");
  const auto [set, set_options] = add("set", "changes a running engine", RunSet);
  set->add_option("--checks", set_options->checks, "off, basic or full");
  set->add_option("--timeout", set_options->timeout, "of each barrier, collective and phase");
  set->add_option("--lr", set_options->lr, "learning rate");
  set->add_flag("--no-wait", set_options->no_wait, "print the operation at once");
  const auto [remove, remove_options] = add("delete", "frees an engine's ranks", RunDelete);
  remove->add_flag("--no-wait", remove_options->no_wait, "print the operation at once");
}

}  // namespace regroup
