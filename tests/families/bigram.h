// A model family from outside engine/: the next token from the last one alone. docs/models.md shows
// it as the example of how one is added.
#ifndef TESTS_FAMILIES_BIGRAM_H_
#define TESTS_FAMILIES_BIGRAM_H_

#include "engine/model/registry.h"

namespace regroup {

// config.json: {"model_type": "bigram", "vocab_size": 16, "hidden_size": 8}. Units: embed and head.
class Bigram : public Model {
 public:
  static absl::StatusOr<ModelDefinition> Define(const ConfigFile& config, DType dtype);

  Bigram(int64_t vocab, int64_t hidden, DType dtype);

  const ParamTable& table() const override { return table_; }
  const ModelLimits& limits() const override { return limits_; }
  at::Tensor LossSum(UnitRunner& runner, const Batch& batch) const override;
  void Decode(UnitRunner& runner, absl::Span<const DecodeRow> rows,
              const LogitsSink& sink) const override;
  KvCache MakeCache(int64_t capacity) const override { return {}; }
  int64_t CacheBytes(int64_t capacity) const override { return 0; }
  int64_t ActivationBytes(int64_t rows, int64_t seq) const override;
  std::string Signature() const override { return "bigram"; }

 private:
  ParamTable table_;
  ModelLimits limits_;
};

}  // namespace regroup

#endif  // TESTS_FAMILIES_BIGRAM_H_
