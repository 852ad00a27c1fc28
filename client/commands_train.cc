#include <memory>
#include <string>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "client/commands.h"
#include "client/flags.h"
#include "client/human.h"
#include "client/operation_view.h"
#include "client/train_view.h"

namespace regroup {
namespace {

constexpr int64_t kMaxSteps = 1000000000;
constexpr int64_t kMaxRows = 65536;
constexpr int64_t kMaxTokensOfRow = 1000000;

struct TrainOptions {
  std::string name, data, steps, batch, seq = "0", accumulate = "1";
};

// Waits until the run that was just cancelled has ended. It holds its engine since its first
// record, and runs on one engine follow each other, so it is the oldest one that is not done.
absl::Status WaitForEnd(Client* client, const std::string& name) {
  const absl::StatusOr<v1::ListOperationsResponse> list = client->ListOperations();
  if (!list.ok()) return list.status();
  for (const v1::Operation& operation : list->operations()) {
    if (operation.kind() == "train" && operation.engine() == name && !operation.done()) {
      return client->Wait(operation).status();
    }
  }
  return absl::OkStatus();
}

// After Ctrl-C the engine ends the step that it is in: says at which step it stands then.
absl::Status ReportStop(Client* client, const std::string& name, const TrainView& view,
                        int64_t steps, Session* session) {
  if (view.done() > 0) {
    if (absl::Status status = WaitForEnd(client, name); !status.ok()) return status;
  }
  const absl::StatusOr<v1::Engine> engine = client->DescribeEngine(name);
  if (!engine.ok()) return engine.status();
  session->Note(view.done() > 0
                    ? absl::StrCat("stopped after step ", engine->step(), " (", view.done(), " of ",
                                   Plural(steps, "step"), " shown)")
                    : absl::StrCat("stopped before the first step was done; engine ", name,
                                   " is at step ", engine->step()));
  return absl::OkStatus();
}

absl::Status RunTrain(const TrainOptions& o, Session* session) {
  FlagReader flags;
  v1::TrainRequest request;
  request.set_name(flags.Name("NAME", o.name));
  request.set_data(flags.Path("--data", o.data));
  request.set_steps(flags.Int("--steps", o.steps, 1, kMaxSteps));
  request.set_batch(flags.Int("--batch", o.batch, 1, kMaxRows));
  request.set_seq(flags.Int("--seq", o.seq, 0, kMaxTokensOfRow));
  request.set_accumulate(flags.Int("--accumulate", o.accumulate, 1, kMaxRows));
  if (!flags.status().ok()) return flags.status();
  absl::StatusOr<Client*> client = session->Connect();
  if (!client.ok()) return client.status();

  TrainView view(request.steps(), session->is_terminal());
  absl::Status status = (*client)->Train(
      request,
      [&](const v1::TrainRecord& record) {
        if (!session->json() && view.done() == 0) session->Print(view.Head());
        const std::string line = view.Line(record);
        if (session->json()) {
          session->PrintJson(record);
        } else {
          session->Print(line);
        }
      },
      session->interrupt()->Arm());
  if (absl::IsCancelled(status) && session->interrupt()->happened()) {
    return ReportStop(*client, o.name, view, request.steps(), session);
  }
  if (status.ok() && !session->json()) session->Print(view.Summary() + "\n");
  return status;
}

}  // namespace

void AddTrainCommand(CLI::App* app, Session* session) {
  auto o = std::make_shared<TrainOptions>();
  CLI::App* command =
      AddCommand(app, "train", "trains, a line a step; Ctrl-C ends it after a step");
  command->add_option("NAME", o->name, "the engine's name")->required();
  command->add_option("--data", o->data, "*.u16.bin, *.u32.bin or *.jsonl of the daemons' machines")
      ->required();
  command->add_option("--steps", o->steps, "how many steps")->required();
  command->add_option("--batch", o->batch, "rows of the global batch")->required();
  command->add_option("--seq", o->seq, "tokens a row; not for mlp models");
  command->add_option("--accumulate", o->accumulate, "micro-batches a step (1)");
  command->callback(
      [o, session] { session->run = [o, session] { return RunTrain(*o, session); }; });
}

}  // namespace regroup
