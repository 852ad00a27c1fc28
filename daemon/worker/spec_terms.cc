#include "daemon/worker/spec_terms.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"

namespace regroup {
namespace {

std::string OptimizerLine(const OptimizerSpec& spec) {
  return absl::StrFormat(
      "optimizer %s lr %.17g momentum %.17g betas %.17g %.17g eps %.17g decay %.17g",
      OptimizerName(spec.kind), spec.learning_rate, spec.momentum, spec.beta1, spec.beta2, spec.eps,
      spec.weight_decay);
}

}  // namespace

std::vector<std::string> SettingsTerms(const EngineSpec& spec) {
  std::vector<std::string> terms = {
      absl::StrFormat("clip norm %.17g", spec.clip_norm),
      absl::StrCat("checks ", static_cast<int>(spec.checks)),
      absl::StrCat("timeout ", absl::FormatDuration(spec.timeout)),
  };
  if (spec.role == Role::kTrain) terms.push_back(OptimizerLine(spec.optimizer));
  return terms;
}

}  // namespace regroup
