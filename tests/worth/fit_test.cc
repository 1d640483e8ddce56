#include "fovea/worth/fit.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "fovea/base/error.h"
#include "tests/worth/published_sweep.h"

namespace fovea::worth {
namespace {

// numpy 2 (QR of scaled columns) and scipy.optimize.curve_fit agree on these to 1e-6 and better.
struct Golden {
  const char* name;
  Sweep sweep;
  Weighting weighting;
  double a, b, c, a_se, b_se, c_se, sigma;
};

void expect_relative(double value, double golden) {
  EXPECT_NEAR(value, golden, 1e-6 * std::fabs(golden));
}

class PrefillFitGolden : public testing::TestWithParam<Golden> {};

TEST_P(PrefillFitGolden, AgreesWithNumpy) {
  const Golden& golden = GetParam();
  const PrefillFit fit = fit_prefill(golden.sweep, golden.weighting);
  expect_relative(fit.a_s, golden.a);
  expect_relative(fit.b_s, golden.b);
  expect_relative(fit.c_s, golden.c);
  expect_relative(fit.a_se, golden.a_se);
  expect_relative(fit.b_se, golden.b_se);
  expect_relative(fit.c_se, golden.c_se);
  expect_relative(fit.sigma, golden.sigma);
  EXPECT_EQ(fit.degrees_of_freedom, 5);
  EXPECT_FALSE(fit.b_shared);
}

INSTANTIATE_TEST_SUITE_P(
    Published, PrefillFitGolden,
    testing::Values(Golden{"flash_absolute", flash_ttft(), Weighting::kAbsolute, 4.941425531886e-02,
                           2.167681282029e-04, 3.688881006228e-09, 6.666479645988e-03,
                           1.437974715626e-06, 4.735420681936e-11, 1.074476298700e-02},
                    Golden{"flash_relative", flash_ttft(), Weighting::kRelative, 6.144140640834e-02,
                           2.099118963503e-04, 3.964525859548e-09, 1.152125162057e-03,
                           1.559832820486e-06, 9.656964089063e-11, 8.560418552952e-03},
                    Golden{"flex_absolute", flex_ttft(), Weighting::kAbsolute, 4.692646172498e-02,
                           2.235013678736e-04, 1.009791465383e-08, 2.232990647023e-02,
                           4.816611256859e-06, 1.586167010777e-10, 3.599044252521e-02},
                    Golden{"flex_relative", flex_ttft(), Weighting::kRelative, 6.268133025505e-02,
                           2.149963114260e-04, 1.044785781893e-08, 9.994699031736e-04,
                           1.467645747918e-06, 1.099434127185e-10, 7.031526571652e-03}),
    [](const auto& test) { return std::string(test.param.name); });

TEST(PrefillFit, JointFitAgreesWithNumpy) {
  const std::vector<Sweep> sweeps = {flash_ttft(), flex_ttft()};
  std::vector<PrefillFit> fits = fit_prefill_jointly(sweeps, Weighting::kAbsolute);
  ASSERT_EQ(fits.size(), 2u);
  expect_relative(fits[0].a_s, 3.829519882773e-02);
  expect_relative(fits[1].a_s, 5.804551821611e-02);
  expect_relative(fits[0].c_s, 3.581311968730e-09);
  expect_relative(fits[1].c_s, 1.020548369133e-08);
  expect_relative(fits[0].c_se, 8.817889121983e-11);
  expect_relative(fits[1].a_se, 1.473971867176e-02);
  for (const PrefillFit& fit : fits) {
    expect_relative(fit.b_s, 2.201347480383e-04);
    expect_relative(fit.b_se, 2.602497355199e-06);
    expect_relative(fit.sigma, 2.750115190562e-02);
    EXPECT_EQ(fit.degrees_of_freedom, 11);
    EXPECT_TRUE(fit.b_shared);
    EXPECT_EQ(fit.residuals_s.size(), 8u);
  }
  fits = fit_prefill_jointly(sweeps, Weighting::kRelative);
  expect_relative(fits[0].b_s, 2.121109134172e-04);
  expect_relative(fits[0].c_se, 9.024849364238e-11);
  expect_relative(fits[1].c_se, 1.216105544702e-10);
}

// The published coefficients came from unrounded times; ours from the rounded table.
TEST(PrefillFit, PublishedCoefficientsAndShares) {
  const PrefillFit flash = fit_prefill(flash_ttft(), Weighting::kAbsolute);
  EXPECT_NEAR(flash.a_s, 0.0497, 5e-4);
  EXPECT_NEAR(flash.b_s * 1e6, 216.8, 0.1);
  EXPECT_NEAR(flash.c_s * 1e12, 3688.6, 1);
  const PrefillFit flex = fit_prefill(flex_ttft(), Weighting::kAbsolute);
  EXPECT_NEAR(flex.a_s, 0.0469, 5e-4);
  EXPECT_NEAR(flex.b_s * 1e6, 223.5, 0.1);
  EXPECT_NEAR(flex.c_s * 1e12, 10099.6, 2);

  const double lengths[] = {2048, 8192, 32768};
  const double flash_percent[] = {3.4, 12.2, 35.8};
  const double flex_percent[] = {8.5, 27.0, 59.7};
  for (int i = 0; i < 3; ++i) {
    EXPECT_NEAR(flash.quadratic_share(lengths[i]) * 100, flash_percent[i], 0.05);
    EXPECT_NEAR(flex.quadratic_share(lengths[i]) * 100, flex_percent[i], 0.05);
  }
}

TEST(PrefillFit, ExactParabolaComesBack) {
  Sweep sweep{"exact", {}, {}};
  for (const double n : {256.0, 1024.0, 8192.0, 131072.0, 1048576.0}) {
    sweep.tokens.push_back(n);
    sweep.values.push_back(0.01 + 1e-5 * n + 1e-10 * n * n);
  }
  for (const Weighting weighting : {Weighting::kAbsolute, Weighting::kRelative}) {
    const PrefillFit fit = fit_prefill(sweep, weighting);
    EXPECT_NEAR(fit.a_s, 0.01, 1e-11);
    EXPECT_NEAR(fit.b_s, 1e-5, 1e-15);
    EXPECT_NEAR(fit.c_s, 1e-10, 1e-20);
    EXPECT_NEAR(fit.ttft_s(2048), 0.01 + 1e-5 * 2048 + 1e-10 * 2048 * 2048, 1e-11);
    EXPECT_EQ(fit.longest_tokens, 1048576);
  }
}

TEST(PrefillFit, RefusesWhatCannotBeFitted) {
  EXPECT_THROW(fit_prefill({"two", {1, 2}, {1, 2}}, Weighting::kAbsolute), Error);
  EXPECT_THROW(fit_prefill({"same length", {9, 9, 9, 9}, {1, 2, 3, 4}}, Weighting::kAbsolute),
               Error);
  EXPECT_THROW(fit_prefill({"ragged", {1, 2, 3}, {1, 2}}, Weighting::kAbsolute), Error);
  EXPECT_THROW(fit_prefill({"nan", {1, 2, 3}, {1, 2, std::nan("")}}, Weighting::kAbsolute), Error);
  EXPECT_THROW(fit_prefill({"zero time", {1, 2, 3}, {1, 0, 3}}, Weighting::kRelative), Error);
  EXPECT_THROW(fit_prefill_jointly({}, Weighting::kAbsolute), Error);
}

TEST(PrefillFit, ThreePointsHaveNoStandardError) {
  const PrefillFit fit = fit_prefill({"three", {1, 2, 3}, {1, 4, 9}}, Weighting::kAbsolute);
  EXPECT_EQ(fit.degrees_of_freedom, 0);
  EXPECT_TRUE(std::isnan(fit.c_se));
  EXPECT_NEAR(fit.c_s, 1, 1e-12);
}

TEST(FarBelowFit, FindsThePromptThatWasCached) {
  for (const Sweep& sweep : {flash_ttft(), flex_ttft()}) {
    EXPECT_TRUE(far_below_fit(sweep).empty()) << sweep.backend;
    for (size_t i = 0; i < sweep.values.size(); ++i) {
      Sweep cached = sweep;
      cached.values[i] /= 10;
      EXPECT_EQ(far_below_fit(cached), std::vector<size_t>{i}) << sweep.backend << " at " << i;
    }
  }
  Sweep few = flash_ttft();
  few.tokens.resize(4);
  few.values = {.116, .280, .005, .992};
  EXPECT_TRUE(far_below_fit(few).empty());
}

TEST(DecodeFit, SlopesAreBandwidths) {
  constexpr double kKvBytesPerToken = 57344;
  const DecodeFit flash = fit_decode(flash_itl());
  expect_relative(flash.intercept_ms, 3.370822041629e+01);
  expect_relative(flash.intercept_se_ms, 7.423124939016e-02);
  expect_relative(flash.slope_us_per_token, 1.230669461845e-01);
  expect_relative(flash.slope_se_us_per_token, 4.809871910047e-03);
  EXPECT_NEAR(flash.slope_us_per_token, 0.123, 5e-4);
  EXPECT_NEAR(flash.bandwidth_gbps(kKvBytesPerToken), 466, 0.5);
  EXPECT_NEAR(flash.kernel_headroom(kKvBytesPerToken, 483), 1.0366, 5e-4);  // at the floor

  const DecodeFit flex = fit_decode(flex_itl());
  EXPECT_NEAR(flex.slope_us_per_token, 1.854, 5e-4);
  EXPECT_NEAR(flex.bandwidth_gbps(kKvBytesPerToken), 31, 0.5);
  EXPECT_GT(flex.kernel_headroom(kKvBytesPerToken, 483), 15);
  EXPECT_NEAR(flex.attention_share(30720), 1.8539e-3 * 30720 / flex.itl_ms(30720), 1e-4);
  EXPECT_THROW(flex.kernel_headroom(kKvBytesPerToken, 0), Error);
}

TEST(TwoPointLaw, PublishedPoints) {
  const TwoPointLaw law = two_point_law({4096, 0.18}, {131072, 0.85});
  EXPECT_NEAR(law.share(4096), 0.18, 1e-12);
  EXPECT_NEAR(law.predicted_share, 0.875, 5e-4);
  EXPECT_DOUBLE_EQ(law.published_share, 0.85);
  EXPECT_THROW(two_point_law({4096, 0.18}, {1024, 0.85}), Error);
  EXPECT_THROW(two_point_law({4096, 0}, {131072, 0.85}), Error);
}

}  // namespace
}  // namespace fovea::worth
