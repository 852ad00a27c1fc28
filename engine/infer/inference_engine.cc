#include "engine/infer/inference_engine.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/group/comm_status.h"
#include "engine/infer/resident_runner.h"

namespace regroup {
namespace {

// One row of the generation under way.
struct RowState {
  int64_t row = 0;
  std::vector<int64_t>
      pending;    // tokens that are not in the cache yet: the prompt, then the last token
  KvCache cache;  // made by the first decode
  int64_t generated = 0;
  int64_t capacity = 0;  // of the cache
  int64_t budget = 0;    // tokens to generate: max_tokens, or what the context leaves
  bool finished = false;
};

at::Tensor AsTensor(const std::vector<int64_t>& tokens) {
  at::Tensor tensor = at::empty({1, static_cast<int64_t>(tokens.size())}, at::kLong);
  std::copy(tokens.begin(), tokens.end(), tensor.data_ptr<int64_t>());
  return tensor;
}

class ResidentEngine : public InferenceEngine {
 public:
  ResidentEngine(const Model* model, EngineState state, ResidentRunner runner)
      : model_(model), state_(std::move(state)), runner_(std::move(runner)) {}

  absl::Status StartGeneration(const std::vector<PromptRow>& rows,
                               const SamplingOptions& options) override {
    const ModelLimits& limits = model_->limits();
    absl::Status valid = CheckSampling(options, limits);
    if (!valid.ok()) return valid;
    std::set<int64_t> numbers;
    std::vector<RowState> started;
    for (const PromptRow& prompt : rows) {
      absl::Status fits = CheckPrompt(prompt.tokens, limits);
      if (!fits.ok()) return fits;
      if (prompt.row < 0 || !numbers.insert(prompt.row).second) {
        return absl::InvalidArgumentError(
            absl::StrCat("row ", prompt.row, ": must be 0 or more, and once in a request"));
      }
      RowState row;
      row.row = prompt.row;
      row.pending = prompt.tokens;
      row.budget = std::min(options.max_tokens,
                            limits.max_positions - static_cast<int64_t>(prompt.tokens.size()));
      row.capacity = static_cast<int64_t>(prompt.tokens.size()) + row.budget;
      started.push_back(std::move(row));
    }
    std::sort(started.begin(), started.end(),
              [](const RowState& a, const RowState& b) { return a.row < b.row; });
    rows_ = std::move(started);
    options_ = options;
    if (options_.stop_tokens.empty()) options_.stop_tokens = limits.stop_tokens;
    return absl::OkStatus();
  }

  absl::StatusOr<std::vector<RowToken>> DecodeToken(
      const std::function<absl::Status()>& may_go_on) override {
    std::vector<RowToken> tokens;
    int64_t prefilled = 0;
    const absl::Status done = CatchStatus("generate", [&]() -> absl::Status {
      const at::NoGradGuard no_grad;
      for (RowState& row : rows_) {
        if (row.finished) continue;
        if (row.generated == 0) {
          const auto size = static_cast<int64_t>(row.pending.size());
          if (prefilled > 0 && prefilled + size > kMaxPrefillTokens) continue;
          prefilled += size;
        }
        if (may_go_on) {
          if (absl::Status status = may_go_on(); !status.ok()) return status;
        }
        absl::StatusOr<RowToken> token = Decode(&row);
        if (!token.ok()) return token.status();
        tokens.push_back(*token);
      }
      return absl::OkStatus();
    });
    if (!done.ok()) {
      EndGeneration();  // some rows went on and others did not
      return done;
    }
    return tokens;
  }

  int64_t unfinished() const override {
    return std::count_if(rows_.begin(), rows_.end(),
                         [](const RowState& row) { return !row.finished; });
  }

  int64_t cache_bytes() const override {
    double bytes = 0;
    for (const RowState& row : rows_) {
      if (!row.finished) bytes += static_cast<double>(model_->CacheBytes(row.capacity));
    }
    return SaturatedBytes(bytes);
  }

  void EndGeneration() override { rows_.clear(); }

  const EngineState& state() const override { return state_; }

 private:
  absl::StatusOr<RowToken> Decode(RowState* row) {
    if (row->generated == 0) row->cache = model_->MakeCache(row->capacity);
    const at::Tensor logits = model_->NextLogits(runner_, AsTensor(row->pending), &row->cache)
                                  .to(at::kFloat)
                                  .contiguous();
    const absl::StatusOr<Sampled> sampled = SampleToken(
        absl::MakeConstSpan(logits.const_data_ptr<float>(), static_cast<size_t>(logits.numel())),
        options_, UniformDraw(options_.seed, row->row, row->generated));
    if (!sampled.ok()) return sampled.status();
    ++row->generated;
    row->pending = {sampled->token};

    RowToken token;
    token.row = row->row;
    token.token = sampled->token;
    token.logprob = sampled->logprob;
    const std::vector<int64_t>& stops = options_.stop_tokens;
    if (std::find(stops.begin(), stops.end(), sampled->token) != stops.end()) {
      token.finish = Finish::kStop;
    } else if (row->generated == row->budget) {
      token.finish = Finish::kLength;
    }
    if (token.finish != Finish::kNone) {
      row->finished = true;
      row->cache = KvCache();
    }
    return token;
  }

  const Model* model_;
  EngineState state_;
  ResidentRunner runner_;
  SamplingOptions options_;
  std::vector<RowState> rows_;
};

absl::Status Invalid(absl::string_view what, absl::string_view allowed) {
  return absl::InvalidArgumentError(absl::StrCat(what, ": must be ", allowed));
}

}  // namespace

absl::Status CheckSampling(const SamplingOptions& options, const ModelLimits& limits) {
  if (!limits.is_language_model) {
    return absl::InvalidArgumentError(
        "generate: the engine's model has no tokens; allowed: a language model");
  }
  if (options.max_tokens < 1) {
    return Invalid(absl::StrCat("--max-tokens=", options.max_tokens), "1 or more");
  }
  if (!std::isfinite(options.temperature) || options.temperature < 0) {
    return Invalid(absl::StrCat("--temperature=", options.temperature),
                   "a finite number, 0 (greedy) or more");
  }
  if (!(options.top_p >= 0 && options.top_p <= 1)) {
    return Invalid(absl::StrCat("--top-p=", options.top_p), "from 0 to 1 (off)");
  }
  if (options.top_k < 0) {
    return Invalid(absl::StrCat("--top-k=", options.top_k), "0 (off) or more");
  }
  for (const int64_t token : options.stop_tokens) {
    if (token < 0 || token >= limits.vocab_size) {
      return Invalid(absl::StrCat("--stop-token=", token),
                     absl::StrCat("from 0 to ", limits.vocab_size - 1,
                                  " (the model's vocabulary has ", limits.vocab_size, " tokens)"));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckPrompt(const std::vector<int64_t>& tokens, const ModelLimits& limits) {
  const auto size = static_cast<int64_t>(tokens.size());
  if (size == 0) return Invalid("--tokens: an empty prompt", "at least one token");
  if (size >= limits.max_positions) {
    return Invalid(absl::StrCat("--tokens: a prompt of ", size, " tokens"),
                   absl::StrCat("at most ", limits.max_positions - 1, ": the model's context of ",
                                limits.max_positions, " must leave room for one token"));
  }
  for (int64_t i = 0; i < size; ++i) {
    if (tokens[i] < 0 || tokens[i] >= limits.vocab_size) {
      return Invalid(absl::StrCat("--tokens: token ", tokens[i], " at position ", i),
                     absl::StrCat("from 0 to ", limits.vocab_size - 1,
                                  " (the model's vocabulary has ", limits.vocab_size, " tokens)"));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<InferenceEngine>> InferenceEngine::Make(const Model* model,
                                                                       EngineState state) {
  absl::StatusOr<ResidentRunner> runner = ResidentRunner::Make(model->table(), state);
  if (!runner.ok()) return runner.status();
  return std::make_unique<ResidentEngine>(model, std::move(state), *std::move(runner));
}

}  // namespace regroup
