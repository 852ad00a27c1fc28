// Generation, a token of each row at a time.
#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/worker/commands.h"
#include "daemon/worker/memory.h"
#include "daemon/worker/proto_convert.h"

namespace regroup {
namespace {

Generator& GeneratorOf(const HeldEngine& engine) {
  if (engine.inference != nullptr) return *engine.inference;
  return *engine.trainer();  // the executor thread alone lets go of it
}

// What the caches take counts as buffers, from when they are promised. A trainer counts its own.
void CountCaches(HeldEngine* engine) {
  if (engine->inference == nullptr) return;
  MemoryUse memory = engine->memory();
  memory.buffers_bytes = engine->inference->cache_bytes();
  memory.peak_bytes = std::max(memory.peak_bytes, memory.weights_bytes + memory.buffers_bytes);
  engine->SetMemory(memory);
}

}  // namespace

absl::Status Commands::StartGeneration(HeldEngine* engine, const v1::StartGeneration& request) {
  if (!engine->model->model->limits().is_language_model) {
    return absl::InvalidArgumentError(absl::StrCat("engine ", engine->spec.name, " has the model ",
                                                   engine->spec.model,
                                                   "; allowed: a language model"));
  }
  std::vector<PromptRow> rows;
  rows.reserve(request.rows_size());
  for (const v1::Row& row : request.rows()) {
    rows.push_back({row.row(), {row.tokens().begin(), row.tokens().end()}});
  }
  SamplingOptions options;
  options.max_tokens = request.max_tokens();
  options.temperature = request.temperature();
  options.top_p = request.top_p();
  options.top_k = request.top_k();
  options.seed = request.seed();
  options.stop_tokens.assign(request.stop_tokens().begin(), request.stop_tokens().end());
  if (absl::Status status = GeneratorOf(*engine).StartGeneration(rows, options); !status.ok()) {
    return status;
  }
  const int64_t needed = GeneratorOf(*engine).cache_bytes();
  const absl::Status admitted =
      AdmitMemory(absl::StrCat("generate: the key-value caches of ", rows.size(),
                               " prompts with --max-tokens=", request.max_tokens(), " in engine ",
                               engine->spec.name, " on rank ", identity_.rank),
                  needed, AwaitMemoryBytes(needed));
  if (!admitted.ok()) GeneratorOf(*engine).EndGeneration();
  CountCaches(engine);
  return admitted;
}

absl::Status Commands::DecodeToken(HeldEngine* engine, v1::DecodeTokenResult* result) {
  Generator& generator = GeneratorOf(*engine);
  const absl::StatusOr<std::vector<RowToken>> tokens =
      generator.DecodeToken([engine] { return engine->aborted(); });
  CountCaches(engine);
  if (!tokens.ok()) return tokens.status();
  for (const RowToken& token : *tokens) {
    v1::RowToken* out = result->add_tokens();
    out->set_row(token.row);
    out->set_token(static_cast<int32_t>(token.token));
    out->set_logprob(token.logprob);
    out->set_finish_reason(FinishToProto(token.finish));
  }
  result->set_unfinished(generator.unfinished());
  result->set_weights_version(generator.state().weights_version);
  return absl::OkStatus();
}

absl::Status Commands::EndGeneration(HeldEngine* engine) {
  GeneratorOf(*engine).EndGeneration();
  CountCaches(engine);
  return absl::OkStatus();
}

}  // namespace regroup
