// The small operations against plain loops, on every instruction set that this machine has.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "fovea/base/cpu_features.h"
#include "fovea/base/error.h"
#include "fovea/ops/cpu/row_kernels.h"
#include "fovea/ops/elementwise.h"
#include "fovea/ops/gated_activation.h"
#include "fovea/ops/reference/reference.h"
#include "fovea/ops/rms_norm.h"
#include "fovea/ops/rope.h"
#include "fovea/tensor/bfloat16.h"

namespace fovea {
namespace {

std::vector<float> random_floats(int64_t count, float spread, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, spread);
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) value = normal(random);
  return values;
}

void expect_close(const std::vector<float>& got, const std::vector<double>& want, double relative) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_NEAR(got[i], want[i], relative * (std::abs(want[i]) + 1e-2)) << "at " << i;
  }
}

constexpr float kInfinity = std::numeric_limits<float>::infinity();

std::vector<const cpu::RowKernels*> kernel_sets() {
  std::vector<const cpu::RowKernels*> sets = {&cpu::kRowKernelsPortable};
#ifdef __x86_64__
  if (cpu_features().avx2) sets.push_back(&cpu::kRowKernelsAvx2);
  if (cpu_features().avx512) sets.push_back(&cpu::kRowKernelsAvx512);
#endif
  return sets;
}

TEST(RowKernels, AgreeWithPlainLoopsOnEveryInstructionSet) {
  for (const cpu::RowKernels* set : kernel_sets()) {
    for (const int64_t n : {1, 15, 16, 17, 64, 576}) {
      SCOPED_TRACE(std::string(set->name) + " n " + std::to_string(n));
      const std::vector<float> x = random_floats(2 * n, 3, 1);
      const std::vector<float> weight = random_floats(n, 1, 2);
      std::vector<float> out(static_cast<size_t>(n));
      const std::vector<float> row(x.begin(), x.begin() + n);
      set->rms_norm_f32(row.data(), weight.data(), 1e-6f, n, out.data());
      expect_close(out, reference::rms_norm(row, weight, 1e-6, 1), 1e-5);
      set->silu_mul_f32(x.data(), x.data() + n, n, out.data());
      expect_close(out, reference::gated_activation(GateFunction::kSilu, x, 1, n), 1e-5);
      set->gelu_mul_f32(x.data(), x.data() + n, n, out.data());
      expect_close(out, reference::gated_activation(GateFunction::kGeluTanh, x, 1, n), 1e-5);
      set->clamped_swiglu_f32(x.data(), x.data() + n, n, out.data());
      expect_close(out, reference::gated_activation(GateFunction::kClampedSwiglu, x, 1, n), 1e-5);
      EXPECT_EQ(set->highest(x.data(), n), *std::max_element(row.begin(), row.end()));
      std::vector<float> infinite = row;
      infinite[static_cast<size_t>(n / 2)] = std::numeric_limits<float>::infinity();
      EXPECT_EQ(set->highest(infinite.data(), n), std::numeric_limits<float>::infinity());
      infinite[static_cast<size_t>(n - 1)] = std::numeric_limits<float>::quiet_NaN();
      EXPECT_TRUE(std::isnan(set->highest(infinite.data(), n)));
      EXPECT_NEAR(set->dot(x.data(), x.data() + n, n),
                  reference::matmul(row, {x.begin() + n, x.end()}, 1, 1, n)[0], 1e-3);
    }
  }
}

// Element by element, in double.
cpu::LeadingLogits leading_plainly(const std::vector<float>& x) {
  cpu::LeadingLogits leading;
  leading.best = std::max_element(x.begin(), x.end()) - x.begin();
  const float best = x[static_cast<size_t>(leading.best)];
  leading.second = -kInfinity;
  for (size_t i = 0; i < x.size(); ++i) {
    leading.exp_sum += std::exp(static_cast<double>(x[i]) - static_cast<double>(best));
    if (static_cast<int64_t>(i) != leading.best) leading.second = std::max(leading.second, x[i]);
  }
  return leading;
}

void expect_leading(const cpu::RowKernels& set, const std::vector<float>& x) {
  const cpu::LeadingLogits got = set.leading_logits(x.data(), static_cast<int64_t>(x.size()));
  const cpu::LeadingLogits want = leading_plainly(x);
  EXPECT_EQ(got.best, want.best);
  EXPECT_EQ(got.second, want.second);
  EXPECT_NEAR(got.exp_sum, want.exp_sum, 5e-7 * want.exp_sum);
}

TEST(RowKernels, LeadingLogitsAgreeWithAPlainLoop) {
  for (const cpu::RowKernels* set : kernel_sets()) {
    SCOPED_TRACE(set->name);
    for (const int64_t n : {1, 2, 15, 16, 17, 1000, 4096, 49152, 50257}) {
      for (const float spread : {0.1f, 3.0f, 30.0f}) {
        SCOPED_TRACE(std::to_string(n) + " of spread " + std::to_string(spread));
        expect_leading(*set, random_floats(n, spread, 7));
      }
    }
    for (size_t best = 0; best < 50; ++best) {
      for (size_t second = 0; second < 50; ++second) {
        std::vector<float> x(50, -1.0f);
        x[second] = 3;
        x[best] = 5;
        expect_leading(*set, x);
        x[second] = 5;  // of two the first is taken, and the other comes second
        expect_leading(*set, x);
      }
    }
  }
}

TEST(RowKernels, LeadingLogitsKnowInfinityAndNan) {
  for (const cpu::RowKernels* set : kernel_sets()) {
    std::vector<float> one_left(40, -kInfinity);
    one_left[17] = 2;
    expect_leading(*set, one_left);
    for (const size_t place : {0, 5, 16, 31, 33}) {
      for (const float wrong : {std::numeric_limits<float>::quiet_NaN(), kInfinity}) {
        std::vector<float> x = random_floats(34, 1, 10);
        x[place] = wrong;
        EXPECT_TRUE(std::isnan(set->leading_logits(x.data(), 34).exp_sum)) << place;
      }
    }
  }
}

TEST(RowKernels, GiveTheSameHalvesAsThePlainConversion) {
  std::vector<float> values = random_floats(1000, 100, 3);
  values.push_back(std::numeric_limits<float>::infinity());
  values.push_back(-0.0f);
  values.push_back(std::numeric_limits<float>::quiet_NaN());
  float all_ones;
  const uint32_t bits = 0x7fffffffu;  // a NaN that plain rounding would turn into -0
  std::memcpy(&all_ones, &bits, sizeof(bits));
  values.push_back(all_ones);
  for (const cpu::RowKernels* set : kernel_sets()) {
    std::vector<uint16_t> halves(values.size());
    set->to_bf16(values.data(), static_cast<int64_t>(values.size()), halves.data());
    for (size_t i = 0; i < values.size(); ++i) {
      ASSERT_EQ(halves[i], to_bfloat16(values[i]).bits) << set->name << " at " << i;
    }
  }
}

TEST(RowKernels, ActivationsHoldAtExtremes) {
  const std::vector<float> gate = {-1e30f, -200, -88, 0, 88, 200, 1e9f};
  const std::vector<float> up(gate.size(), 1.0f);
  for (const cpu::RowKernels* set : kernel_sets()) {
    std::vector<float> out(gate.size());
    set->silu_mul_f32(gate.data(), up.data(), static_cast<int64_t>(gate.size()), out.data());
    for (size_t i = 1; i < gate.size(); ++i) {
      const double want = gate[i] / (1.0 + std::exp(-static_cast<double>(gate[i])));
      EXPECT_NEAR(out[i], want, 1e-5 * std::abs(want) + 1e-30) << set->name << " at " << gate[i];
    }
  }
}

TEST(RmsNorm, HandlesHeadsWithStridesAndBothTypes) {
  // Heads of 8 in rows of 5 heads, of which the middle three are normalised.
  std::vector<float> x = random_floats(4 * 5 * 8, 2, 4);
  const std::vector<float> weight = random_floats(8, 1, 5);
  TensorView view = make_view(x.data() + 8, DType::kF32, {4, 3, 8});
  view.stride[0] = 40;
  std::vector<uint16_t> halves(4 * 3 * 8);
  const TensorView out = make_view(halves.data(), DType::kBF16, {4, 3, 8});
  const TensorView weights = make_view(const_cast<float*>(weight.data()), DType::kF32, {8});
  EXPECT_TRUE(rms_norm(view, weights, 1e-5f, out));
  for (size_t row = 0; row < 4; ++row) {
    const auto begin = x.begin() + static_cast<int64_t>(row * 40 + 8);
    const std::vector<double> want = reference::rms_norm({begin, begin + 24}, weight, 1e-5, 3);
    for (size_t i = 0; i < 24; ++i) {
      EXPECT_NEAR(to_float({halves[row * 24 + i]}), want[i], 0.005 * std::abs(want[i]) + 1e-6);
    }
  }
}

TEST(RmsNorm, ReportsWhatIsNotFinite) {
  std::vector<float> x(64, 1.0f);
  std::vector<float> weight(32, 1.0f);
  const TensorView view = make_view(x.data(), DType::kF32, {2, 32});
  const TensorView weights = make_view(weight.data(), DType::kF32, {32});
  EXPECT_TRUE(rms_norm(view, weights, 0, view));
  x[40] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_FALSE(rms_norm(view, weights, 0, view));
  x[40] = std::numeric_limits<float>::infinity();
  EXPECT_FALSE(all_finite(view));
}

TEST(RmsNorm, RefusesShapesThatDoNotFit) {
  std::vector<float> x(64);
  const TensorView view = make_view(x.data(), DType::kF32, {2, 32});
  EXPECT_THROW(rms_norm(view, make_view(x.data(), DType::kF32, {16}), 0, view), Error);
  EXPECT_THROW(rms_norm(view, make_view(x.data(), DType::kF32, {32}), -1, view), Error);
  EXPECT_THROW(rms_norm(view, make_view(x.data(), DType::kF32, {32}), 0,
                        make_view(x.data(), DType::kF32, {1, 32})),
               Error);
}

TEST(Rope, MatchesTheFormulaFarOut) {
  constexpr int64_t kRows = 130, kHeads = 2, kDim = 40, kFirst = 130000;
  const std::vector<float> x = random_floats(kRows * kHeads * kDim, 1, 6);
  std::vector<float> factors(kDim / 2, 1.0f);
  factors[3] = 8.0f;
  RopeTable table(kDim, 1e4, factors);
  table.fill(kFirst, kRows, {});
  std::vector<float> out(x.size());
  rope(make_view(const_cast<float*>(x.data()), DType::kF32, {kRows, kHeads, kDim}), table, 0,
       make_view(out.data(), DType::kF32, {kRows, kHeads, kDim}));
  expect_close(out, reference::rope(x, kRows, kHeads, kDim, kFirst, 1e4, factors), 2e-5);
}

TEST(Rope, APositionsValuesDoNotDependOnTheFilling) {
  RopeTable whole(64, 1e5, {});
  RopeTable part(64, 1e5, {});
  whole.fill(int64_t{0}, 300, {});
  part.fill(100, 150, {});
  for (int64_t row = 0; row < 150; ++row) {
    ASSERT_EQ(0, std::memcmp(whole.cos(100 + row), part.cos(row), 32 * sizeof(float)));
    ASSERT_EQ(0, std::memcmp(whole.sin(100 + row), part.sin(row), 32 * sizeof(float)));
  }
}

TEST(Rope, RefusesWhatDoesNotFit) {
  EXPECT_THROW(RopeTable(63, 1e4, {}), Error);
  EXPECT_THROW(RopeTable(64, 0, {}), Error);
  const std::vector<float> factors(31, 1.0f);
  EXPECT_THROW(RopeTable(64, 1e4, factors), Error);
  RopeTable table(64, 1e4, {});
  table.fill(int64_t{0}, 4, {});
  std::vector<float> x(5 * 64), out(5 * 64);
  EXPECT_THROW(rope(make_view(x.data(), DType::kF32, {5, 1, 64}), table, 0,
                    make_view(out.data(), DType::kF32, {5, 1, 64})),
               Error);
}

TEST(GatedActivation, MatchesPlainLoops) {
  const std::vector<float> x = random_floats(3 * 2 * 20, 2, 7);
  std::vector<float> out(3 * 20);
  const TensorView in = make_view(const_cast<float*>(x.data()), DType::kF32, {3, 40});
  gated_activation(GateFunction::kSilu, in, make_view(out.data(), DType::kF32, {3, 20}));
  expect_close(out, reference::gated_activation(GateFunction::kSilu, x, 3, 20), 1e-5);
  gated_activation(GateFunction::kGeluTanh, in, make_view(out.data(), DType::kF32, {3, 20}));
  expect_close(out, reference::gated_activation(GateFunction::kGeluTanh, x, 3, 20), 1e-5);
  EXPECT_THROW(
      gated_activation(GateFunction::kSilu, in, make_view(out.data(), DType::kF32, {3, 19})),
      Error);
  const std::vector<float> wide = random_floats(3 * 2 * 20, 12, 8);  // past the limits of 7
  gated_activation(GateFunction::kClampedSwiglu,
                   make_view(const_cast<float*>(wide.data()), DType::kF32, {3, 40}),
                   make_view(out.data(), DType::kF32, {3, 20}));
  expect_close(out, reference::gated_activation(GateFunction::kClampedSwiglu, wide, 3, 20), 1e-5);
}

TEST(Elementwise, AddsAndConverts) {
  std::vector<float> x = {1, 2, 3, 4, 5, 6};
  std::vector<float> sum = {10, 20, 30, 40, 50, 60};
  std::vector<float> bias = {0.5f, 0.25f, 0.125f};
  const TensorView sum_view = make_view(sum.data(), DType::kF32, {2, 3});
  add_rows(make_view(x.data(), DType::kF32, {2, 3}), sum_view);
  add_bias(make_view(bias.data(), DType::kF32, {3}), sum_view);
  EXPECT_EQ(sum, (std::vector<float>{11.5f, 22.25f, 33.125f, 44.5f, 55.25f, 66.125f}));
  std::vector<uint16_t> halves(6);
  convert_rows(sum_view, make_view(halves.data(), DType::kBF16, {2, 3}));
  EXPECT_EQ(to_float({halves[5]}), 66.0f);
  EXPECT_THROW(add_bias(make_view(bias.data(), DType::kF32, {2}), sum_view), Error);
}

}  // namespace
}  // namespace fovea
