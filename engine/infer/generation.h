// What a rank knows of a generation: its rows, their key-value caches, and who is due. Nothing here
// is collective.
#ifndef ENGINE_INFER_GENERATION_H_
#define ENGINE_INFER_GENERATION_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/infer/sampler.h"
#include "engine/model/model.h"
#include "engine/zero/engine_state.h"
#include "engine/zero/unit_runner.h"

namespace regroup {

// INVALID_ARGUMENT naming the field, the value and what is allowed.
absl::Status CheckSampling(const SamplingOptions& options, const ModelLimits& limits);

// INVALID_ARGUMENT for an empty prompt, a token outside the vocabulary, or one that leaves no place
// for one more token in the context.
// `row`: its place in the request, for the message.
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

// An engine that generates. One thread at a time.
class Generator {
 public:
  virtual ~Generator() = default;

  // Local: replaces a generation that is under way. Keeps the prompts; they are prefilled by the
  // first calls of DecodeToken. Errors: INVALID_ARGUMENT.
  virtual absl::Status StartGeneration(const std::vector<PromptRow>& rows,
                                       const SamplingOptions& options) = 0;

  // One more token for each unfinished row, in row order; rows whose prompts exceed what one call
  // prefills get theirs in a later call. Empty when all are finished. Local in an inference engine;
  // collective over a trainer's ranks, where a rank whose rows are finished, or that has none, is
  // called like the others. `may_go_on`, if any, is asked before each row that is computed on its
  // own (not in a trainer); its error ends the generation and is returned, as any other.
  virtual absl::StatusOr<std::vector<RowToken>> DecodeToken(
      const std::function<absl::Status()>& may_go_on) = 0;
  virtual int64_t unfinished() const = 0;

  // What the caches of the unfinished rows take when they are full; rows get theirs when they are
  // prefilled. Saturates.
  virtual int64_t cache_bytes() const = 0;

  // Local: frees caches.
  virtual void EndGeneration() = 0;

  virtual const EngineState& state() const = 0;
};

// The rows of one rank. One thread.
class Generation {
 public:
  // `model` outlives this.
  explicit Generation(const Model* model) : model_(model) {}

  // As Generator::StartGeneration.
  absl::Status Start(const std::vector<PromptRow>& rows, const SamplingOptions& options);

  // The rows of the next pass: all unfinished ones, but not more prefills than kMaxPrefillTokens
  // allows.
  std::vector<size_t> Due() const;

  // One pass over the model's units, with the given rows of Due(); none is allowed. Appends each
  // row's next token to `tokens`. Call without autograd. Throws what the runner throws. An error
  // (FAILED_PRECONDITION: logits that nothing can be drawn from) is returned when the pass is over.
  absl::Status Decode(UnitRunner& runner, absl::Span<const size_t> rows,
                      std::vector<RowToken>* tokens);

  int64_t unfinished() const;
  int64_t cache_bytes() const;
  void End() { rows_.clear(); }

 private:
  struct Row {
    int64_t row = 0;
    std::vector<int64_t>
        pending;    // tokens that are not in the cache yet: the prompt, then the last token
    KvCache cache;  // made by the first decode
    int64_t generated = 0;
    int64_t capacity = 0;  // of the cache
    int64_t budget = 0;    // tokens to generate: max_tokens, or what the context leaves
    bool finished = false;
  };

  // The row's next token from its logits [1, vocab].
  absl::StatusOr<RowToken> Take(Row* row, const at::Tensor& logits) const;

  const Model* model_;
  SamplingOptions options_;
  std::vector<Row> rows_;  // by row number
};

}  // namespace regroup

#endif  // ENGINE_INFER_GENERATION_H_
