// Everything that decides what an engine computes, without torch and without protobuf.
#ifndef ENGINE_LAYOUT_ENGINE_SPEC_H_
#define ENGINE_LAYOUT_ENGINE_SPEC_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/time/time.h"
#include "engine/layout/layout.h"
#include "engine/layout/param_table.h"

namespace regroup {

enum class Role { kTrain, kInfer };
enum class CheckLevel { kOff, kBasic, kFull };
enum class OptimizerKind { kSgd, kAdam, kAdamW };

// "sgd", "adam", "adamw".
inline const char* OptimizerName(OptimizerKind kind) {
  return kind == OptimizerKind::kSgd ? "sgd" : kind == OptimizerKind::kAdam ? "adam" : "adamw";
}

// torch's formulas and defaults.
struct OptimizerSpec {
  OptimizerKind kind = OptimizerKind::kAdamW;
  double learning_rate = 0;
  double momentum = 0;  // sgd
  double beta1 = 0.9;   // adam, adamw
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0;  // sgd, adam: added to the gradient (L2); adamw: decoupled

  // fp32 tensors of a shard's size that the optimizer keeps: 2 (adam, adamw), 1 (sgd with
  // momentum), 0.
  int num_moments() const { return kind != OptimizerKind::kSgd ? 2 : momentum != 0 ? 1 : 0; }
};

// What may change while an engine lives.
struct EngineSettings {
  double learning_rate = 0;  // trainers
  CheckLevel checks = CheckLevel::kBasic;
  absl::Duration timeout = absl::Seconds(30);
};

// Whether a trainer keeps an fp32 master copy of weights of `dtype`: the weights are its rounding.
inline bool NeedsMaster(DType dtype) { return dtype != DType::kFp32; }

struct EngineSpec {
  std::string name;
  uint64_t uid = 0;  // issued by the primary, never used twice
  std::string model;
  Role role = Role::kTrain;
  std::optional<DType> dtype;  // unset: the model files' own
  Layout layout;
  OptimizerSpec optimizer;
  double clip_norm = 0;    // 0 = off
  bool recompute = false;  // of activations, in the backward pass
  uint64_t seed = 0;
  CheckLevel checks = CheckLevel::kBasic;
  absl::Duration timeout = absl::Seconds(30);
};

}  // namespace regroup

#endif  // ENGINE_LAYOUT_ENGINE_SPEC_H_
