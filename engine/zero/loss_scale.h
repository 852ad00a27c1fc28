// The dynamic loss scale of fp16 training (arXiv:1710.03740): gradients are computed of a loss that
// is this much larger, so that small ones do not vanish, and divided by it in fp32.
#ifndef ENGINE_ZERO_LOSS_SCALE_H_
#define ENGINE_ZERO_LOSS_SCALE_H_

#include <algorithm>
#include <cstdint>

namespace regroup {

inline constexpr int64_t kGoodStepsBeforeGrowth = 2000;

struct LossScale {
  double value = 65536;    // a power of two: multiplying by it rounds nothing
  int64_t good_steps = 0;  // applied one after another since it changed

  // A step was applied.
  void Applied() {
    if (++good_steps < kGoodStepsBeforeGrowth) return;
    value *= 2;
    good_steps = 0;
  }

  // A step was skipped because gradients were not finite.
  void Overflowed() {
    value = std::max(1.0, value / 2);
    good_steps = 0;
  }
};

inline bool operator==(const LossScale& a, const LossScale& b) {
  return a.value == b.value && a.good_steps == b.good_steps;
}

}  // namespace regroup

#endif  // ENGINE_ZERO_LOSS_SCALE_H_
