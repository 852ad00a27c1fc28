#include "engine/model/mlp.h"

#include <ATen/core/Reduction.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/relu.h>

#include <cmath>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "engine/group/comm_status.h"
#include "engine/layout/human_text.h"
#include "engine/model/strict_json.h"
#include "engine/zero/dtype.h"

namespace regroup {
namespace {

constexpr int64_t kMaxFeatures = 1 << 20;
constexpr int64_t kMaxLayers = 10000;

absl::Status NotALanguageModel() {
  return absl::FailedPreconditionError("model_type mlp has no tokens to generate");
}

}  // namespace

Mlp::Mlp(const MlpConfig& config, DType dtype) : config_(config), table_(dtype) {
  for (int64_t i = 0; i < config.layers; ++i) {
    const int64_t in = i == 0 ? config.in : config.hidden;
    const int64_t out = i + 1 == config.layers ? config.out : config.hidden;
    const std::string name = absl::StrCat("layers.", i);
    table_.AddUnit(name);
    table_.AddParameter(absl::StrCat(name, ".weight"), {out, in});
    table_.AddParameter(absl::StrCat(name, ".bias"), {out});
  }
  limits_.in_features = config.in;
  limits_.out_features = config.out;
}

at::Tensor Mlp::LossSum(UnitRunner& runner, const Batch& batch) const {
  at::Tensor x = batch.inputs.to(ToScalarType(table_.dtype()));
  for (int64_t i = 0; i < config_.layers; ++i) {
    const bool last = i + 1 == config_.layers;
    x = runner.Run(static_cast<int>(i), x,
                   [last](const at::Tensor& h, absl::Span<const at::Tensor> params) {
                     const at::Tensor y = at::linear(h, params[0], params[1]);
                     return last ? y : at::relu(y);
                   });
  }
  return at::mse_loss(x.to(at::kFloat), batch.targets, at::Reduction::Sum);
}

void Mlp::Decode(UnitRunner& runner, absl::Span<const DecodeRow> rows,
                 const LogitsSink& sink) const {
  throw StatusException(NotALanguageModel());
}

KvCache Mlp::MakeCache(int64_t capacity) const { throw StatusException(NotALanguageModel()); }

int64_t Mlp::CacheBytes(int64_t capacity) const { return 0; }

int64_t Mlp::ActivationBytes(int64_t rows, int64_t seq) const {
  const double of_row =
      static_cast<double>(config_.in + config_.out) +
      static_cast<double>(config_.layers - 1) * static_cast<double>(config_.hidden);
  return SaturatedBytes(static_cast<double>(rows) * of_row *
                        static_cast<double>(DTypeBytes(table_.dtype())));
}

// A layer's input is all that its backward reads.
int64_t Mlp::RecomputedActivationBytes(int64_t rows, int64_t seq) const {
  return ActivationBytes(rows, seq);
}

std::string Mlp::Signature() const { return "mlp relu, squared error"; }

absl::StatusOr<ModelDefinition> Mlp::Define(const ConfigFile& config, DType dtype) {
  ConfigReader reader(config);
  MlpConfig mlp;
  mlp.in = reader.Integer("in", 1, kMaxFeatures, std::nullopt);
  mlp.hidden = reader.Integer("hidden", 1, kMaxFeatures, std::nullopt);
  mlp.layers = reader.Integer("layers", 1, kMaxLayers, std::nullopt);
  mlp.out = reader.Integer("out", 1, kMaxFeatures, std::nullopt);
  if (!reader.status().ok()) return reader.status();

  ModelDefinition definition;
  definition.model = std::make_unique<Mlp>(mlp, dtype);
  definition.initial = [mlp](const Parameter& parameter, at::Generator generator) {
    const double bound =
        1 / std::sqrt(static_cast<double>(parameter.unit == 0 ? mlp.in : mlp.hidden));
    return at::empty(parameter.shape, at::kFloat).uniform_(-bound, bound, std::move(generator));
  };
  return definition;
}

absl::StatusOr<std::string> MlpConfigFromSpec(absl::string_view spec) {
  constexpr char kAllowed[] = "mlp:in=I,hidden=H,layers=L,out=O";
  const auto refuse = [&spec, &kAllowed](const std::string& why) {
    return absl::InvalidArgumentError(
        absl::StrCat("--model=mlp:", Printable(spec, 100), ": ", why, "; allowed: ", kAllowed));
  };
  std::map<std::string, int64_t> values;
  for (absl::string_view item : absl::StrSplit(spec, ',')) {
    const std::vector<absl::string_view> parts = absl::StrSplit(item, absl::MaxSplits('=', 1));
    const absl::string_view key = parts[0];
    if (key != "in" && key != "hidden" && key != "layers" && key != "out") {
      return refuse(absl::StrCat(Quote(item), " is not known"));
    }
    const absl::string_view digits = parts.size() == 2 ? parts[1] : "";
    int64_t value = 0;
    if (digits.empty() || digits.find_first_not_of("0123456789") != absl::string_view::npos ||
        !absl::SimpleAtoi(digits, &value)) {
      return refuse(absl::StrCat(key, " = ", Quote(digits), " is not a number of digits"));
    }
    if (!values.emplace(key, value).second) return refuse(absl::StrCat(key, " is given twice"));
  }
  for (const char* key : {"in", "hidden", "layers", "out"}) {
    if (values.count(key) == 0) return refuse(absl::StrCat(key, " is missing"));
  }
  return absl::StrCat("{\n  \"model_type\": \"mlp\",\n  \"in\": ", values["in"],
                      ",\n  \"hidden\": ", values["hidden"], ",\n  \"layers\": ", values["layers"],
                      ",\n  \"out\": ", values["out"], ",\n  \"dtype\": \"float32\"\n}\n");
}

}  // namespace regroup
