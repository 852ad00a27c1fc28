#include "engine/infer/sampler.h"

#include <ATen/core/PhiloxRNGEngine.h>

#include <algorithm>
#include <cmath>

namespace regroup {
namespace {

struct Summary {
  int64_t largest = 0;     // token
  double log_sum_exp = 0;  // of the logits
};

absl::StatusOr<Summary> Summarize(absl::Span<const float> logits) {
  Summary summary;
  for (size_t i = 1; i < logits.size(); ++i) {
    if (logits[i] > logits[summary.largest]) summary.largest = static_cast<int64_t>(i);
  }
  const double max = logits.empty() ? NAN : logits[summary.largest];
  double sum = 0;
  for (const float logit : logits) sum += std::exp(logit - max);
  summary.log_sum_exp = max + std::log(sum);
  if (!std::isfinite(summary.log_sum_exp)) {
    return absl::FailedPreconditionError(
        "the model's logits are not finite: its weights hold or lead to inf or NaN");
  }
  return summary;
}

// Keeps the `count` largest logits, in order.
void KeepLargest(absl::Span<const float> logits, size_t count, std::vector<Candidate>* tokens) {
  const auto larger = [&logits](const Candidate& a, const Candidate& b) {
    const float x = logits[a.token], y = logits[b.token];
    return x > y || (x == y && a.token < b.token);
  };
  if (count < tokens->size()) {
    std::nth_element(tokens->begin(), tokens->begin() + static_cast<int64_t>(count), tokens->end(),
                     larger);
    tokens->resize(count);
  }
  std::sort(tokens->begin(), tokens->end(), larger);
}

void Normalize(std::vector<Candidate>* tokens) {
  double sum = 0;
  for (const Candidate& candidate : *tokens) sum += candidate.probability;
  for (Candidate& candidate : *tokens) candidate.probability /= sum;
}

}  // namespace

absl::StatusOr<std::vector<Candidate>> Candidates(absl::Span<const float> logits,
                                                  const SamplingOptions& options) {
  const absl::StatusOr<Summary> summary = Summarize(logits);
  if (!summary.ok()) return summary.status();
  const double max = logits[summary->largest];
  std::vector<Candidate> tokens(logits.size());
  for (size_t i = 0; i < logits.size(); ++i) {
    tokens[i].token = static_cast<int64_t>(i);
    tokens[i].probability = std::exp((logits[i] - max) / options.temperature);
  }
  const bool limited = options.top_k > 0 && options.top_k < static_cast<int64_t>(logits.size());
  if (limited || options.top_p < 1) {
    KeepLargest(logits, limited ? static_cast<size_t>(options.top_k) : logits.size(), &tokens);
  }
  Normalize(&tokens);
  if (options.top_p < 1) {
    // In fp32 as torch: a sum that is top_p but for rounding has reached it.
    double before = 0;
    size_t kept = 0;
    for (; kept < tokens.size(); ++kept) {
      if (kept > 0 && static_cast<float>(before) >= static_cast<float>(options.top_p)) break;
      before += static_cast<float>(tokens[kept].probability);
    }
    tokens.resize(kept);
    Normalize(&tokens);
  }
  return tokens;
}

absl::StatusOr<Sampled> SampleToken(absl::Span<const float> logits, const SamplingOptions& options,
                                    double uniform) {
  const absl::StatusOr<Summary> summary = Summarize(logits);
  if (!summary.ok()) return summary.status();
  Sampled sampled;
  sampled.token = summary->largest;
  if (options.temperature > 0) {
    const absl::StatusOr<std::vector<Candidate>> tokens = Candidates(logits, options);
    if (!tokens.ok()) return tokens.status();
    double below = 0;
    for (const Candidate& candidate : *tokens) {
      if (candidate.probability == 0) continue;
      sampled.token = candidate.token;  // stays the last one if rounding left the sum below 1
      below += candidate.probability;
      if (uniform < below) break;
    }
  }
  sampled.logprob = static_cast<float>(logits[sampled.token] - summary->log_sum_exp);
  return sampled;
}

double UniformDraw(uint64_t seed, int64_t row, int64_t index) {
  at::Philox4_32 random(seed, static_cast<uint64_t>(row), static_cast<uint64_t>(index));
  const uint64_t high = random(), low = random();
  return static_cast<double>((high << 21) ^ (low >> 11)) * 0x1p-53;
}

}  // namespace regroup
