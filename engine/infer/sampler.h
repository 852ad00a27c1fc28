// The next token from the logits of one row.
#ifndef ENGINE_INFER_SAMPLER_H_
#define ENGINE_INFER_SAMPLER_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace regroup {

struct SamplingOptions {
  int64_t max_tokens = 1;  // > 0
  double temperature = 0;  // 0 = greedy; finite, >= 0
  double top_p = 1;        // in [0, 1]; 1 = off
  int64_t top_k = 0;       // 0, or at least the vocabulary's size = off
  uint64_t seed = 0;
  std::vector<int64_t> stop_tokens;  // empty: the model's eos
};

struct Candidate {
  int64_t token = 0;
  double probability = 0;  // the candidates' sum is 1
};

// The tokens that may be drawn, with temperature > 0: softmax of logits / temperature, then the
// top_k largest, then, of those renormalised, the shortest run of the largest whose fp32 sum
// reaches top_p (at least one token). Of equal logits the lower token counts as larger. Sorted from
// large to small if top_k or top_p is on, else by token. Errors: FAILED_PRECONDITION if the logits
// hold no finite number, or a NaN or +inf.
absl::StatusOr<std::vector<Candidate>> Candidates(absl::Span<const float> logits,
                                                  const SamplingOptions& options);

struct Sampled {
  int64_t token = 0;
  float logprob =
      0;  // of the token in log-softmax(logits): whatever temperature, top_k and top_p did
};

// The token that `uniform`, a number in [0, 1), draws; with temperature 0 the one with the largest
// logit, the lowest of equal ones. Errors: as Candidates.
absl::StatusOr<Sampled> SampleToken(absl::Span<const float> logits, const SamplingOptions& options,
                                    double uniform);

// Number `index` of the random numbers in [0, 1) of `row` of a request with `seed`: a counter-based
// generator, so that it is the same wherever and in whatever order rows are computed.
double UniformDraw(uint64_t seed, int64_t row, int64_t index);

}  // namespace regroup

#endif  // ENGINE_INFER_SAMPLER_H_
