// What a model family is to the engines: a table of parameters in units, and a forward pass that
// gets at a unit's weights only while a UnitRunner holds them.
#ifndef ENGINE_MODEL_MODEL_H_
#define ENGINE_MODEL_MODEL_H_

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "engine/layout/param_table.h"
#include "engine/zero/unit_runner.h"

namespace regroup {

// The rows of one rank of one (micro-)batch; zero rows are allowed and run the same graph.
struct Batch {
  at::Tensor inputs;   // language models: int64 [b, T], T up to --seq; mlp: float [b, in]
  at::Tensor targets;  // language models: int64 [b, T], -100 = not counted; mlp: float [b, out]
};

// Keys and values of the tokens of one row so far, one pair a layer.
struct KvCache {
  std::vector<at::Tensor> keys;    // each [1, kv_heads, capacity, head_dim]
  std::vector<at::Tensor> values;  // same
  int64_t length = 0;              // tokens held
};

// A row's part of a decoding pass.
struct DecodeRow {
  at::Tensor tokens;         // int64 [1, n], n > 0; they stand at positions cache->length ...
  KvCache* cache = nullptr;  // their keys and values are appended to it
};

// Gets the logits [1, vocab] of the last token of rows[row], row after row; it must not throw.
using LogitsSink = std::function<void(size_t row, const at::Tensor& logits)>;

// What requests are checked against.
struct ModelLimits {
  bool is_language_model = false;
  int64_t vocab_size = 0;            // language models
  int64_t max_positions = 0;         // language models
  std::vector<int64_t> stop_tokens;  // the config's eos
  int64_t in_features = 0;           // mlp
  int64_t out_features = 0;          // mlp
};

// For sizes that may exceed 64 bits.
inline int64_t SaturatedBytes(double bytes) {
  return bytes < 9e18 ? static_cast<int64_t>(bytes) : INT64_MAX;
}

// Stateless beyond its table and constants (rotary tables): safe to share between threads.
class Model {
 public:
  virtual ~Model() = default;

  virtual const ParamTable& table() const = 0;
  virtual const ModelLimits& limits() const = 0;

  // The loss of the batch summed over its counted targets (cross entropy) or elements (squared
  // error), a scalar; the caller divides by the global count. Differentiable.
  virtual at::Tensor LossSum(UnitRunner& runner, const Batch& batch) const = 0;

  // Language models: one pass over all units with all of `rows`. Each row is computed by itself:
  // its logits do not depend on who is with it. No row: the units are run all the same. Call
  // without autograd.
  virtual void Decode(UnitRunner& runner, absl::Span<const DecodeRow> rows,
                      const LogitsSink& sink) const = 0;

  // Decode of one row: its logits [1, vocab].
  at::Tensor NextLogits(UnitRunner& runner, const at::Tensor& tokens, KvCache* cache) const {
    const DecodeRow row{tokens, cache};
    at::Tensor result;
    Decode(runner, absl::MakeConstSpan(&row, 1),
           [&result](size_t, const at::Tensor& logits) { result = logits; });
    return result;
  }

  // An empty cache for at most `capacity` tokens, and the bytes that it takes.
  virtual KvCache MakeCache(int64_t capacity) const = 0;
  virtual int64_t CacheBytes(int64_t capacity) const = 0;

  // Bytes that a forward and backward pass over `rows` rows of `seq` tokens (1 for an mlp) takes at
  // least, beside weights and gradients. Saturates.
  virtual int64_t ActivationBytes(int64_t rows, int64_t seq) const = 0;

  // The same where units are computed again in backward: each unit's input, and the inside of one
  // unit. 0 is allowed: then such passes are not refused for memory.
  virtual int64_t RecomputedActivationBytes(int64_t rows, int64_t seq) const { return 0; }

  // What decides the values computed from the same weights but stands in no table: equal for models
  // that compute the same.
  virtual std::string Signature() const = 0;
};

}  // namespace regroup

#endif  // ENGINE_MODEL_MODEL_H_
