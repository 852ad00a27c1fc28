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

// After Ctrl-C the engine ends the step that it is in: waits for that, and says at which step it
// stands then. `id` is the run's operation, "" = not known.
absl::Status ReportStop(Client* client, const std::string& name, const std::string& id,
                        const TrainView& view, Session* session) {
  v1::Operation ended;
  if (!id.empty()) {
    v1::Operation operation;
    operation.set_id(id);
    absl::StatusOr<v1::Operation> waited = client->Wait(operation);
    if (!waited.ok()) return waited.status();
    ended = *std::move(waited);
  }
  const absl::StatusOr<v1::Engine> engine = client->DescribeEngine(name);
  if (!engine.ok()) return engine.status();
  session->Note(view.Stopped(ended, *engine));
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
  std::string operation;
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
      {session->interrupt()->Arm(), {}}, &operation);
  if (!session->printed().ok()) return session->printed();
  if (absl::IsCancelled(status) && session->interrupt()->happened()) {
    return ReportStop(*client, o.name, operation, view, session);
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
