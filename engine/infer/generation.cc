#include "engine/infer/generation.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"

namespace regroup {
namespace {

at::Tensor AsTensor(const std::vector<int64_t>& tokens) {
  at::Tensor tensor = at::empty({1, static_cast<int64_t>(tokens.size())}, at::kLong);
  std::copy(tokens.begin(), tokens.end(), tensor.data_ptr<int64_t>());
  return tensor;
}

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

absl::Status CheckPrompt(int64_t row, const std::vector<int64_t>& tokens,
                         const ModelLimits& limits) {
  const std::string where = row == 0 ? "--tokens (or line 1 of --tokens-file)"
                                     : absl::StrCat("--tokens-file, line ", row + 1);
  const auto size = static_cast<int64_t>(tokens.size());
  if (size == 0) return Invalid(absl::StrCat(where, ": an empty prompt"), "at least one token");
  if (size >= limits.max_positions) {
    return Invalid(absl::StrCat(where, ": a prompt of ", size, " tokens"),
                   absl::StrCat("at most ", limits.max_positions - 1, ": the model's context of ",
                                limits.max_positions, " must leave room for one token"));
  }
  for (int64_t i = 0; i < size; ++i) {
    if (tokens[i] < 0 || tokens[i] >= limits.vocab_size) {
      return Invalid(absl::StrCat(where, ": token ", tokens[i], " at position ", i),
                     absl::StrCat("from 0 to ", limits.vocab_size - 1,
                                  " (the model's vocabulary has ", limits.vocab_size, " tokens)"));
    }
  }
  return absl::OkStatus();
}

absl::Status Generation::Start(const std::vector<PromptRow>& rows, const SamplingOptions& options) {
  const ModelLimits& limits = model_->limits();
  absl::Status valid = CheckSampling(options, limits);
  if (!valid.ok()) return valid;
  std::set<int64_t> numbers;
  std::vector<Row> started;
  for (const PromptRow& prompt : rows) {
    absl::Status fits = CheckPrompt(prompt.row, prompt.tokens, limits);
    if (!fits.ok()) return fits;
    if (prompt.row < 0 || !numbers.insert(prompt.row).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("row ", prompt.row, ": must be 0 or more, and once in a request"));
    }
    Row row;
    row.row = prompt.row;
    row.pending = prompt.tokens;
    row.budget = std::min(options.max_tokens,
                          limits.max_positions - static_cast<int64_t>(prompt.tokens.size()));
    row.capacity = static_cast<int64_t>(prompt.tokens.size()) + row.budget;
    started.push_back(std::move(row));
  }
  std::sort(started.begin(), started.end(),
            [](const Row& a, const Row& b) { return a.row < b.row; });
  rows_ = std::move(started);
  options_ = options;
  if (options_.stop_tokens.empty()) options_.stop_tokens = limits.stop_tokens;
  return absl::OkStatus();
}

std::vector<size_t> Generation::Due() const {
  std::vector<size_t> due;
  int64_t prefilled = 0;
  for (size_t i = 0; i < rows_.size(); ++i) {
    const Row& row = rows_[i];
    if (row.finished) continue;
    if (row.generated == 0) {
      const auto size = static_cast<int64_t>(row.pending.size());
      if (prefilled > 0 && prefilled + size > kMaxPrefillTokens) continue;
      prefilled += size;
    }
    due.push_back(i);
  }
  return due;
}

absl::Status Generation::Decode(UnitRunner& runner, absl::Span<const size_t> rows,
                                std::vector<RowToken>* tokens) {
  std::vector<DecodeRow> parts;
  parts.reserve(rows.size());
  for (const size_t i : rows) {
    Row& row = rows_[i];
    if (row.generated == 0) row.cache = model_->MakeCache(row.capacity);
    parts.push_back({AsTensor(row.pending), &row.cache});
  }
  std::vector<absl::StatusOr<RowToken>> taken;
  taken.reserve(rows.size());
  model_->Decode(runner, parts, [&](size_t i, const at::Tensor& logits) {
    taken.push_back(Take(&rows_[rows[i]], logits));
  });
  absl::Status first;
  for (size_t i = 0; i < taken.size(); ++i) {
    first.Update(taken[i].status());
    if (!taken[i].ok()) continue;
    if (taken[i]->finish != Finish::kNone) rows_[rows[i]].cache = KvCache();
    tokens->push_back(*taken[i]);
  }
  return first;
}

absl::StatusOr<RowToken> Generation::Take(Row* row, const at::Tensor& logits) const {
  const at::Tensor scores = logits.to(at::kFloat).contiguous();
  const absl::StatusOr<Sampled> sampled = SampleToken(
      absl::MakeConstSpan(scores.const_data_ptr<float>(), static_cast<size_t>(scores.numel())),
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
  row->finished = token.finish != Finish::kNone;
  return token;
}

int64_t Generation::unfinished() const {
  return std::count_if(rows_.begin(), rows_.end(), [](const Row& row) { return !row.finished; });
}

int64_t Generation::cache_bytes() const {
  double bytes = 0;
  for (const Row& row : rows_) {
    if (!row.finished) bytes += static_cast<double>(model_->CacheBytes(row.capacity));
  }
  return SaturatedBytes(bytes);
}

}  // namespace regroup
