// The `mlp` family: Linear layers in -> hidden ... -> out with ReLU between, trained on squared
// error.
#ifndef ENGINE_MODEL_MLP_H_
#define ENGINE_MODEL_MLP_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/model/model.h"
#include "engine/model/registry.h"

namespace regroup {

struct MlpConfig {
  int64_t in = 0;
  int64_t hidden = 0;
  int64_t layers = 0;
  int64_t out = 0;
};

// Tensors layers.{i}.weight [out, in] and layers.{i}.bias [out]; a unit a layer. A language model's
// methods throw StatusException (FAILED_PRECONDITION).
class Mlp : public Model {
 public:
  // The family's factory. config.json: {"model_type": "mlp", "in": 8, "hidden": 16, "layers": 2,
  // "out": 4}.
  static absl::StatusOr<ModelDefinition> Define(const ConfigFile& config, DType dtype);

  Mlp(const MlpConfig& config, DType dtype);

  const ParamTable& table() const override { return table_; }
  const ModelLimits& limits() const override { return limits_; }
  at::Tensor LossSum(UnitRunner& runner, const Batch& batch) const override;
  void Decode(UnitRunner& runner, absl::Span<const DecodeRow> rows,
              const LogitsSink& sink) const override;
  KvCache MakeCache(int64_t capacity) const override;
  int64_t CacheBytes(int64_t capacity) const override;
  int64_t ActivationBytes(int64_t rows, int64_t seq) const override;
  int64_t RecomputedActivationBytes(int64_t rows, int64_t seq) const override;
  std::string Signature() const override;

 private:
  MlpConfig config_;
  ParamTable table_;
  ModelLimits limits_;
};

// The config.json of "in=8,hidden=16,layers=2,out=4". Errors: INVALID_ARGUMENT (a key missing,
// unknown or given twice, a value that is not a number); bounds are the factory's.
absl::StatusOr<std::string> MlpConfigFromSpec(absl::string_view spec);

}  // namespace regroup

#endif  // ENGINE_MODEL_MLP_H_
