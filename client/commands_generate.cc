#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "client/commands.h"
#include "client/errors.h"
#include "client/flags.h"
#include "client/generate_view.h"
#include "client/prompts.h"

namespace regroup {
namespace {

constexpr int64_t kMaxNewTokens = 1000000000;

struct GenerateOptions {
  std::string name, tokens, tokens_file, max_tokens;
  std::string temperature = "0", top_p = "1", top_k = "0", seed = "0";
  std::vector<std::string> stop_tokens;
};

void ReadPromptFlags(const GenerateOptions& o, FlagReader* flags, v1::GenerateRequest* request) {
  if (o.tokens.empty() == o.tokens_file.empty()) {
    flags->Fail(UsageError("give either --tokens=1,2,3 or --tokens-file=FILE"));
    return;
  }
  std::vector<std::vector<int32_t>> prompts;
  if (!o.tokens.empty()) {
    prompts.push_back(flags->Tokens("--tokens", o.tokens));
  } else {
    prompts = flags->TokensFile("--tokens-file", o.tokens_file);
  }
  for (const std::vector<int32_t>& prompt : prompts) {
    request->add_prompts()->mutable_tokens()->Add(prompt.begin(), prompt.end());
  }
}

absl::Status RunGenerate(const GenerateOptions& o, Session* session) {
  FlagReader flags;
  v1::GenerateRequest request;
  request.set_name(flags.Name("NAME", o.name));
  request.set_max_tokens(flags.Int("--max-tokens", o.max_tokens, 1, kMaxNewTokens));
  request.set_temperature(flags.Number("--temperature", o.temperature, kNotNegative));
  request.set_top_p(flags.Number("--top-p", o.top_p, kUpToOne));
  request.set_top_k(flags.Int("--top-k", o.top_k, 0, kMaxToken));
  request.set_seed(flags.Seed("--seed", o.seed));
  for (const std::string& text : o.stop_tokens) {
    request.add_stop_tokens(static_cast<int32_t>(flags.Int("--stop-token", text, 0, kMaxToken)));
  }
  ReadPromptFlags(o, &flags, &request);
  if (!flags.status().ok()) return flags.status();
  absl::StatusOr<Client*> client = session->Connect();
  if (!client.ok()) return client.status();

  const int64_t rows = request.prompts_size();
  const absl::StatusOr<v1::GenerateResponse> response =
      (*client)->Generate(request,
                          [&](const v1::GenerateResponse& progress) {
                            session->ShowProgress(absl::StrCat(
                                "generate ", o.name, ": ", progress.tokens_done(), " tokens, ",
                                progress.rows_done(), " of ", rows, " rows done"));
                          },
                          {session->interrupt()->Arm(), {}});
  session->ClearProgress();
  if (absl::IsCancelled(response.status()) && session->interrupt()->happened()) {
    return absl::CancelledError("generation cancelled");
  }
  if (!response.ok()) return response.status();
  if (session->json()) {
    session->PrintJson(Json{{"outputs", ToJson(*response)["outputs"]}});
  } else {
    session->Print(GenerateView(*response, session->color()));
  }
  for (const v1::Output& output : response->outputs()) {
    if (output.finish_reason() == v1::FINISH_REASON_CANCELLED) {
      return absl::CancelledError("generation cancelled before its end");
    }
  }
  return absl::OkStatus();
}

}  // namespace

void AddGenerateCommand(CLI::App* app, Session* session) {
  auto o = std::make_shared<GenerateOptions>();
  CLI::App* command =
      AddCommand(app, "generate", "generates tokens with an inference engine or a trainer");
  command->add_option("NAME", o->name, "the engine's name")->required();
  command->add_option("--tokens", o->tokens, "the prompt: token ids, separated by commas");
  command->add_option("--tokens-file", o->tokens_file,
                      "the prompts: a file of this machine, one JSON array a line");
  command->add_option("--max-tokens", o->max_tokens, "new tokens of each output")->required();
  command->add_option("--temperature", o->temperature, "0 = greedy (default)");
  command->add_option("--top-p", o->top_p, "1 = off (default)");
  command->add_option("--top-k", o->top_k, "0 = off (default)");
  command->add_option("--seed", o->seed, "of the sampling (0)");
  command
      ->add_option("--stop-token", o->stop_tokens,
                   "ends an output; may be repeated (default: the model's)")
      ->allow_extra_args(false);
  command->callback(
      [o, session] { session->run = [o, session] { return RunGenerate(*o, session); }; });
}

}  // namespace regroup
