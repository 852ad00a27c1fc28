// Plain libtorch on one process with whole tensors: what an engine of any layout has to agree with.
// It shares no code with the engines.
//
// reference_test.cc holds it against numbers that transformers and torch.optim printed for the same
// weights (golden.py).
#ifndef TESTS_REFERENCE_REFERENCE_H_
#define TESTS_REFERENCE_REFERENCE_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace regroup::reference {

// By the names of the HF file, each whole, of one dtype: fp32, or bf16, which is then computed in.
// A tied head is not in it.
using Weights = std::map<std::string, at::Tensor>;

struct Llama {
  int64_t layers = 0;
  int64_t heads = 0;
  int64_t kv_heads = 0;
  int64_t head_dim = 0;
  double eps = 1e-6;
  double rope_theta = 10000;
  bool tied = false;
};

// Logits [b, T, vocab] of tokens (int64 [b, T]) that stand at positions 0..T-1. Differentiable.
at::Tensor LlamaLogits(const Llama& model, const Weights& weights, const at::Tensor& tokens);

// Mean cross entropy over all targets (int64 [b, T]).
at::Tensor LlamaLoss(const Llama& model, const Weights& weights, const at::Tensor& tokens,
                     const at::Tensor& targets);

// A row with its own length; `counts` says of each token whether it is a target. The first never
// is.
struct MaskedRow {
  std::vector<int64_t> tokens;
  std::vector<bool> counts;
};

// Cross entropy of the counted targets of all rows, each computed by itself, divided by their
// number.
at::Tensor LlamaRowsLoss(const Llama& model, const Weights& weights,
                         const std::vector<MaskedRow>& rows);

// Mean squared error over all elements of targets [b, out]; layers.{i}.weight|bias with ReLU
// between.
at::Tensor MlpLoss(int64_t layers, const Weights& weights, const at::Tensor& inputs,
                   const at::Tensor& targets);

// Log-softmax [T, vocab] of one row (T tokens).
at::Tensor LogProbs(const Llama& model, const Weights& weights, const std::vector<int64_t>& tokens);

struct Continuation {
  std::vector<int64_t> tokens;
  std::vector<double> logprobs;
  std::vector<double> gaps;  // between the best and the second best log-probability
};

// Greedy, the whole row computed again for each token; ends after a token of `stop` or
// `max_tokens`.
Continuation GenerateGreedy(const Llama& model, const Weights& weights, std::vector<int64_t> prompt,
                            int64_t max_tokens, const std::vector<int64_t>& stop = {});

enum class Optimizer { kSgd, kAdam, kAdamW };

struct TrainOptions {
  Optimizer optimizer = Optimizer::kAdamW;
  double learning_rate = 0;
  double momentum = 0;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0.01;
  double clip_norm = 0;
  bool bf16 = false;  // losses see the rounding of the fp32 weights that are stepped
};

struct Step {
  double loss = 0;
  double grad_norm = 0;  // before clipping
};

// A loss of a batch: scalar.
using LossFunction = std::function<at::Tensor(const Weights& weights)>;

// Weights and optimizer state of one run, stepped by torch's formulas.
class Trainer {
 public:
  // Copies `weights`.
  Trainer(const Weights& weights, const TrainOptions& options);

  Step TrainStep(const LossFunction& loss);
  void set_learning_rate(double learning_rate) { options_.learning_rate = learning_rate; }

  // The fp32 ones, live; detach or clone before changing.
  const Weights& weights() const { return weights_; }

 private:
  void Update(at::Tensor weight, at::Tensor gradient, const std::string& name);

  TrainOptions options_;
  Weights weights_;
  std::map<std::string, at::Tensor> first_;   // momentum, or the mean of gradients
  std::map<std::string, at::Tensor> second_;  // the mean of their squares
  int64_t step_ = 0;
};

// The rows of batch number `position`: (position * batch + i) mod rows.
std::vector<int64_t> BatchRows(int64_t position, int64_t batch, int64_t rows);

// Inputs and next-token targets of the given rows of a token file with rows of `seq`.
struct TokenBatch {
  at::Tensor inputs;   // int64 [b, seq]
  at::Tensor targets;  // int64 [b, seq]
};
TokenBatch CutTokens(const std::vector<int64_t>& tokens, int64_t seq,
                     const std::vector<int64_t>& rows);

}  // namespace regroup::reference

#endif  // TESTS_REFERENCE_REFERENCE_H_
