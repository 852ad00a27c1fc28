// The models and data that the whole-system tests train on, the same steps by the reference, and
// the tolerances between the two.
#ifndef TESTS_SYSTEM_FIXTURES_H_
#define TESTS_SYSTEM_FIXTURES_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tests/reference/reference.h"
#include "tests/system/cli.h"
#include "tests/system/hf_folder.h"

namespace regroup::harness {

struct LlamaFixture {
  std::string folder;
  SmallLlama shape;
  TensorMap weights;
};

struct TokenFixture {
  std::string path;
  std::vector<int64_t> tokens;
};

inline constexpr int64_t kSeq = 16;
inline constexpr int64_t kMlpIn = 8;
inline constexpr int64_t kMlpLayers = 3;
inline constexpr int64_t kMlpOut = 4;
inline constexpr char kMlpSpec[] = "mlp:in=8,hidden=128,layers=3,out=4";  // 18,180 parameters

// Written once a process; `root` is the data root of the daemons that read it.
struct Fixtures {
  std::string root;
  LlamaFixture untied;
  LlamaFixture tied;
  TokenFixture text;  // 40 rows of kSeq
  TokenFixture other_text;
  std::string mlp_path;
  std::vector<MlpRow> mlp_rows;  // 23
};
const Fixtures& Data();

// A daemon of `ranks` ranks whose data root is Data().root, for the tests of a suite.
class FixtureTest : public SharedDaemonTest {
 protected:
  static void StartDaemonOnFixtures(int ranks);
};

reference::Llama ReferenceOf(const SmallLlama& shape);
reference::Weights ToWeights(const TensorMap& tensors);

// --optimizer=... and the like for the same options.
Flags OptimizerFlags(const reference::TrainOptions& options);
reference::TrainOptions Sgd(double learning_rate = 0.1);
reference::TrainOptions AdamW(double learning_rate = 1e-3);
reference::TrainOptions Adam(double learning_rate = 1e-3);

// Steps a model by the reference over the same batches that `train` draws.
class ReferenceRun {
 public:
  // A Llama over a token file, or the mlp of kMlpSpec over Data().mlp_rows from the weights given.
  ReferenceRun(const LlamaFixture& model, const TokenFixture& text,
               const reference::TrainOptions& options);
  ReferenceRun(const TensorMap& mlp_weights, const reference::TrainOptions& options);

  std::vector<reference::Step> Train(int64_t steps, int64_t batch);
  void set_learning_rate(double learning_rate) { trainer_.set_learning_rate(learning_rate); }

  const reference::Weights& weights() const { return trainer_.weights(); }

 private:
  reference::LossFunction NextLoss(int64_t batch);

  const LlamaFixture* model_ = nullptr;
  const TokenFixture* text_ = nullptr;
  reference::Trainer trainer_;
  int64_t position_ = 0;
};

// Losses and gradient norms within 1e-5 relative, steps counted from `first`, none skipped.
void ExpectSteps(const std::vector<StepRecord>& actual,
                 const std::vector<reference::Step>& expected, int64_t first = 1);

// The rule for fp32 training on different group sizes: 5e-6 absolute under SGD; under Adam
// and AdamW 1e-3 lr steps + 2 ulp for 99.9 % of the elements and 2 lr steps for all.
void ExpectWeights(const TensorMap& actual, const reference::Weights& expected,
                   const reference::TrainOptions& options, int64_t steps);

// Every token is the greedy one of plain libtorch on `weights` (or within 1e-4 of it), with the
// same raw log-probability within `tolerance`.
void ExpectGreedy(const std::vector<int64_t>& prompt, const Generated& output,
                  const LlamaFixture& model, const TensorMap& weights, double tolerance = 1e-4);

}  // namespace regroup::harness

#endif  // TESTS_SYSTEM_FIXTURES_H_
