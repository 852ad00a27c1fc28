// An inference engine on one rank: full weights, generation with a KV cache. Nothing here is
// collective.
#ifndef ENGINE_INFER_INFERENCE_ENGINE_H_
#define ENGINE_INFER_INFERENCE_ENGINE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/infer/sampler.h"
#include "engine/model/load.h"
#include "engine/model/model.h"
#include "engine/zero/engine_state.h"

namespace regroup {

// INVALID_ARGUMENT naming the field, the value and what is allowed.
absl::Status CheckSampling(const SamplingOptions& options, const ModelLimits& limits);

// INVALID_ARGUMENT for an empty prompt, a token outside the vocabulary, or one that leaves no place
// for one more token in the context. `row`: its place in the request, for the message.
absl::Status CheckPrompt(int64_t row, const std::vector<int64_t>& tokens,
                         const ModelLimits& limits);

struct PromptRow {
  int64_t row = 0;  // in the whole request: keys the row's random generator
  std::vector<int64_t> tokens;
};

enum class Finish { kNone, kStop, kLength };

struct RowToken {
  int64_t row = 0;
  int64_t token = 0;
  float logprob = 0;  // raw log-softmax
  Finish finish = Finish::kNone;
};

// Prompt tokens that one DecodeToken prefills at most, unless one row alone has more: it must not
// take long, so that others get their turn and an abort is noticed.
inline constexpr int64_t kMaxPrefillTokens = 512;

// One thread at a time.
class InferenceEngine {
 public:
  // `state` is replicated: full weights, no moments. `model` outlives the engine.
  static absl::StatusOr<std::unique_ptr<InferenceEngine>> Make(const Model* model,
                                                               EngineState state);
  virtual ~InferenceEngine() = default;

  // Replaces a generation that is under way. Keeps the prompts; they are prefilled by the
  // first calls of DecodeToken. Errors: INVALID_ARGUMENT.
  virtual absl::Status StartGeneration(const std::vector<PromptRow>& rows,
                                       const SamplingOptions& options) = 0;

  // One more token for each unfinished row, in row order; rows whose prompts exceed what one call
  // prefills get theirs in a later call. Empty when all are finished. `may_go_on`, if any, is asked
  // before each row; its error ends the generation and is returned, as any other.
  virtual absl::StatusOr<std::vector<RowToken>> DecodeToken(
      const std::function<absl::Status()>& may_go_on) = 0;
  virtual int64_t unfinished() const = 0;

  // What the caches of the unfinished rows take when they are full; rows get theirs when they are
  // prefilled. Saturates.
  virtual int64_t cache_bytes() const = 0;

  // Frees caches.
  virtual void EndGeneration() = 0;

  virtual const EngineState& state() const = 0;
};

}  // namespace regroup

#endif  // ENGINE_INFER_INFERENCE_ENGINE_H_
