// A small model with its data and weights for the trainer's tests, and the same training in one
// process.
#ifndef ENGINE_TRAIN_TWO_LAYERS_H_
#define ENGINE_TRAIN_TWO_LAYERS_H_

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/zeros.h>

#include <functional>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "engine/group/comm_status.h"
#include "engine/train/trainer.h"
#include "engine/zero/dtype.h"

namespace regroup {

constexpr int kIn = 6;
constexpr int kHidden = 9;
constexpr int kOut = 3;

// Deterministic values without a generator, fp32.
at::Tensor Values(const std::vector<int64_t>& shape, double phase);

// Two linear layers with ReLU between, squared error.
class TwoLayers : public Model {
 public:
  explicit TwoLayers(DType dtype = DType::kFp32) : table_(dtype) {
    table_.AddUnit("first");
    table_.AddParameter("first.weight", {kHidden, kIn});
    table_.AddParameter("first.bias", {kHidden});
    table_.AddUnit("second");
    table_.AddParameter("second.weight", {kOut, kHidden});
    table_.AddParameter("second.bias", {kOut});
  }
  const ParamTable& table() const override { return table_; }
  const ModelLimits& limits() const override { return limits_; }
  at::Tensor LossSum(UnitRunner& runner, const Batch& batch) const override;
  void Decode(UnitRunner&, absl::Span<const DecodeRow>, const LogitsSink&) const override {}
  KvCache MakeCache(int64_t) const override { return {}; }
  int64_t CacheBytes(int64_t) const override { return 0; }
  int64_t ActivationBytes(int64_t, int64_t) const override { return 0; }
  std::string Signature() const override { return "two layers"; }

 private:
  ParamTable table_;
  ModelLimits limits_;
};

// Rows in memory. `bad_row` has an infinite target; uncounted() makes every target uncounted.
class MemoryRows : public Dataset {
 public:
  explicit MemoryRows(int64_t rows) : x_(Values({rows, kIn}, 1)), y_(Values({rows, kOut}, 2)) {}
  int64_t rows() const override { return x_.size(0); }
  absl::Status Check(int64_t, int64_t) const override { return absl::OkStatus(); }
  int64_t CountTargets(absl::Span<const int64_t> rows) const override {
    return counted_ ? static_cast<int64_t>(rows.size()) * kOut : 0;
  }
  Batch Load(absl::Span<const int64_t> rows) const override {
    if (broken_) throw StatusException(absl::DataLossError("the file changed"));
    std::vector<at::Tensor> x{at::zeros({0, kIn})}, y{at::zeros({0, kOut})};
    for (const int64_t row : rows) {
      x.push_back(x_.narrow(0, row, 1));
      y.push_back(y_.narrow(0, row, 1));
    }
    return {at::cat(x), at::cat(y)};
  }
  // What a file that changed under the trainer does.
  void set_broken(bool broken) { broken_ = broken; }
  void SpoilRow(int64_t row) { y_[row][0] = std::numeric_limits<float>::infinity(); }
  void set_counted(bool counted) { counted_ = counted; }
  const at::Tensor& x() const { return x_; }
  const at::Tensor& y() const { return y_; }

 private:
  at::Tensor x_, y_;
  bool counted_ = true;
  bool broken_ = false;
};

class FixedWeights : public WeightSource {
 public:
  explicit FixedWeights(const ParamTable* table) : table_(table) {}
  static at::Tensor Whole(const Parameter& parameter) {
    return Values(parameter.shape, 10.0 * parameter.id) * 0.4;
  }
  absl::StatusOr<at::Tensor> Read(int id, int64_t begin, int64_t end, DType dtype) override {
    return Whole(table_->parameter(id)).reshape({-1}).slice(0, begin, end).to(ToScalarType(dtype));
  }
  std::vector<std::string> ContentTerms() const override { return {"fixed"}; }

 private:
  const ParamTable* table_;
};

class CollectingWriter : public ExportWriter {
 public:
  absl::Status Write(int id, const at::Tensor& value) override {
    if (!failure.ok()) return failure;
    values.push_back(value.clone());
    return absl::OkStatus();
  }
  absl::StatusOr<int64_t> Commit() override { return 0; }
  std::vector<at::Tensor> values;
  absl::Status failure;
};

// A trainer's spec without layout: lr 0.1 for SGD, else 1e-3 with a weight decay of 0.01.
EngineSpec Spec(OptimizerKind kind, double clip);

// Makes a trainer on each of `ranks` and runs `body`.
void RunTrainers(const std::vector<int>& ranks, EngineSpec spec, const Model& model,
                 const std::function<void(int, Trainer&)>& body);

struct ReferenceStep {
  double loss = 0;
  double norm = 0;
};

// The same steps in one process: plain autograd, update formulas written out.
class Reference {
 public:
  Reference(const TwoLayers& model, EngineSpec spec)
      : spec_(std::move(spec)), dtype_(ToScalarType(model.table().dtype())) {
    for (const Parameter& parameter : model.table().parameters()) {
      at::Tensor whole = FixedWeights::Whole(parameter);
      parameters.push_back(whole);
      m_.push_back(at::zeros(parameter.shape));
      v_.push_back(at::zeros(parameter.shape));
    }
  }

  void Skip() { ++position_; }

  ReferenceStep Step(const MemoryRows& data, int64_t batch);

  std::vector<at::Tensor> parameters;

 private:
  EngineSpec spec_;
  at::ScalarType dtype_;
  std::vector<at::Tensor> m_, v_;
  int64_t position_ = 0;
  int step_ = 0;
};

}  // namespace regroup

#endif  // ENGINE_TRAIN_TWO_LAYERS_H_
