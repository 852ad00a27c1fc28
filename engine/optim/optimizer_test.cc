#include "engine/optim/optimizer.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <cmath>
#include <limits>
#include <vector>

#include "gtest/gtest.h"

namespace regroup {
namespace {

constexpr int kElements = 37;  // no multiple of a vector's width

at::Tensor Gradient(int step) { return (at::arange(kElements, at::kFloat) * 0.3 + step).sin(); }

TEST(Optimizer, AdamW_EqualsTheFormulaInDouble) {
  OptimizerSpec spec;
  spec.kind = OptimizerKind::kAdamW;
  spec.learning_rate = 1e-2;
  spec.weight_decay = 0.1;
  UnitState unit;
  unit.weights = at::arange(kElements, at::kFloat) * 0.1;
  unit.moments = {at::zeros({kElements}), at::zeros({kElements})};
  std::vector<double> w(kElements), m(kElements), v(kElements);
  for (int i = 0; i < kElements; ++i) w[i] = unit.weights[i].item<float>();
  for (int step = 1; step <= 5; ++step) {
    at::Tensor gradient = Gradient(step);
    for (int i = 0; i < kElements; ++i) {
      const double g = gradient[i].item<float>();
      w[i] *= 1 - spec.learning_rate * spec.weight_decay;
      m[i] = spec.beta1 * m[i] + (1 - spec.beta1) * g;
      v[i] = spec.beta2 * v[i] + (1 - spec.beta2) * g * g;
      const double m_hat = m[i] / (1 - std::pow(spec.beta1, step));
      const double v_hat = v[i] / (1 - std::pow(spec.beta2, step));
      w[i] -= spec.learning_rate * m_hat / (std::sqrt(v_hat) + spec.eps);
    }
    ApplyUpdate(spec, step, gradient, &unit);
  }
  for (int i = 0; i < kElements; ++i) {
    EXPECT_NEAR(unit.weights[i].item<float>(), w[i], 2e-6) << i;
    EXPECT_NEAR(unit.moments[0][i].item<float>(), m[i], 1e-6) << i;
    EXPECT_NEAR(unit.moments[1][i].item<float>(), v[i], 1e-6) << i;
  }
}

TEST(Optimizer, Adam_WithDecayInTheGradient_EqualsTheFormulaInDouble) {
  OptimizerSpec spec;
  spec.kind = OptimizerKind::kAdam;
  spec.learning_rate = 1e-2;
  spec.weight_decay = 0.1;
  ASSERT_EQ(spec.num_moments(), 2);
  UnitState unit;
  unit.weights = at::arange(kElements, at::kFloat) * 0.1;
  unit.moments = {at::zeros({kElements}), at::zeros({kElements})};
  std::vector<double> w(kElements), m(kElements), v(kElements);
  for (int i = 0; i < kElements; ++i) w[i] = unit.weights[i].item<float>();
  for (int step = 1; step <= 5; ++step) {
    at::Tensor gradient = Gradient(step);
    for (int i = 0; i < kElements; ++i) {
      const double g = gradient[i].item<float>() + spec.weight_decay * w[i];
      m[i] = spec.beta1 * m[i] + (1 - spec.beta1) * g;
      v[i] = spec.beta2 * v[i] + (1 - spec.beta2) * g * g;
      const double m_hat = m[i] / (1 - std::pow(spec.beta1, step));
      const double v_hat = v[i] / (1 - std::pow(spec.beta2, step));
      w[i] -= spec.learning_rate * m_hat / (std::sqrt(v_hat) + spec.eps);
    }
    ApplyUpdate(spec, step, gradient, &unit);
  }
  for (int i = 0; i < kElements; ++i) {
    EXPECT_NEAR(unit.weights[i].item<float>(), w[i], 2e-6) << i;
    EXPECT_NEAR(unit.moments[0][i].item<float>(), m[i], 1e-6) << i;
    EXPECT_NEAR(unit.moments[1][i].item<float>(), v[i], 1e-6) << i;
  }
}

TEST(Optimizer, Sgd_WithMomentumAndDecay_EqualsTheFormula) {
  for (const double momentum : {0.0, 0.9}) {
    OptimizerSpec spec;
    spec.kind = OptimizerKind::kSgd;
    spec.learning_rate = 0.1;
    spec.momentum = momentum;
    spec.weight_decay = 0.05;
    ASSERT_EQ(spec.num_moments(), momentum == 0 ? 0 : 1);
    UnitState unit;
    unit.weights = at::arange(kElements, at::kFloat) * 0.1;
    if (momentum != 0) unit.moments = {at::zeros({kElements})};
    std::vector<double> w(kElements), b(kElements);
    for (int i = 0; i < kElements; ++i) w[i] = unit.weights[i].item<float>();
    for (int step = 1; step <= 4; ++step) {
      at::Tensor gradient = Gradient(step);
      for (int i = 0; i < kElements; ++i) {
        const double g = gradient[i].item<float>() + spec.weight_decay * w[i];
        b[i] = step == 1 ? g : momentum * b[i] + g;
        w[i] -= spec.learning_rate * (momentum == 0 ? g : b[i]);
      }
      ApplyUpdate(spec, step, gradient, &unit);
    }
    for (int i = 0; i < kElements; ++i) {
      EXPECT_NEAR(unit.weights[i].item<float>(), w[i], 2e-6) << i << ", momentum " << momentum;
    }
  }
}

// The update is that of the fp32 copy to the last bit; many updates smaller than the weights'
// spacing add up there.
TEST(Optimizer, MasterCopy_IsUpdatedAndTheWeightsAreItsRounding) {
  for (const OptimizerKind kind :
       {OptimizerKind::kSgd, OptimizerKind::kAdam, OptimizerKind::kAdamW}) {
    OptimizerSpec spec;
    spec.kind = kind;
    spec.learning_rate = 1e-4;
    spec.weight_decay = 0.01;
    UnitState plain;
    plain.weights = at::arange(kElements, at::kFloat) * 0.1 + 1.003;
    UnitState mixed;
    mixed.master = plain.weights.clone();
    mixed.weights = plain.weights.to(at::kBFloat16);
    const at::Tensor before = mixed.weights.clone();
    for (int i = 0; i < spec.num_moments(); ++i) {
      plain.moments.push_back(at::zeros({kElements}));
      mixed.moments.push_back(at::zeros({kElements}));
    }
    for (int step = 1; step <= 100; ++step) {
      at::Tensor gradient = at::full({kElements}, 1.0F);
      at::Tensor same = gradient.clone();
      ApplyUpdate(spec, step, gradient, &plain);
      ApplyUpdate(spec, step, same, &mixed);
      ASSERT_TRUE(mixed.master.equal(plain.weights)) << step;
      ASSERT_TRUE(mixed.weights.equal(plain.weights.to(at::kBFloat16))) << step;
    }
    EXPECT_FALSE(mixed.weights.equal(before));
  }
}

TEST(Optimizer, Padding_StaysZero) {
  OptimizerSpec spec;
  spec.learning_rate = 1;
  spec.weight_decay = 0.5;
  UnitState unit;
  unit.weights = at::zeros({16});
  unit.moments = {at::zeros({16}), at::zeros({16})};
  at::Tensor gradient = at::zeros({16});
  ApplyUpdate(spec, 1, gradient, &unit);
  EXPECT_EQ(unit.weights.abs().sum().item<float>(), 0);
}

TEST(Optimizer, SumOfSquares_CountsEachElementOnce) {
  EXPECT_DOUBLE_EQ(SumOfSquares(at::full({kElements}, 2.0F)), 4.0 * kElements);
  EXPECT_EQ(SumOfSquares(at::zeros({0})), 0);
  // Beyond fp32: the sum of squares of large gradients does not overflow.
  EXPECT_TRUE(std::isfinite(SumOfSquares(at::full({4}, 1e30F))));
}

TEST(Optimizer, SumOfSquares_IsNonFiniteIfAnyElementIs) {
  for (const float bad :
       {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    for (const int at : {0, kElements - 1}) {
      at::Tensor values = at::zeros({kElements});
      values[at] = bad;
      EXPECT_FALSE(std::isfinite(SumOfSquares(values)));
    }
  }
}

}  // namespace
}  // namespace regroup
