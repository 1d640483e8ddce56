#include "fovea/quality/calibrate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "fovea/base/error.h"

namespace fovea::quality {
namespace {

TEST(FirstGood, BisectsForTheFirst) {
  for (size_t size = 1; size < 20; ++size) {
    for (size_t first = 0; first <= size; ++first) {
      size_t num_asked = 0;
      const auto found = first_good(size, [&](size_t index) {
        ++num_asked;
        return index >= first;
      });
      EXPECT_EQ(found, first < size ? std::optional(first) : std::nullopt);
      EXPECT_LE(num_asked, 6u);  // the last one, and five halvings of at most 19
    }
  }
  EXPECT_EQ(first_good(0, [](size_t) { return true; }), std::nullopt);
}

TEST(LossKind, NamesGoBothWays) {
  EXPECT_EQ(parse_loss_kind("agreement"), LossKind::kAgreement);
  EXPECT_EQ(loss_kind_name(parse_loss_kind("nll")), "nll");
  EXPECT_THROW(parse_loss_kind("kl"), Error);
}

class LossOfTheNeedleModel : public testing::Test {
 protected:
  static LossMeter make_meter() {
    std::vector<std::vector<int32_t>> texts(2, std::vector<int32_t>(2048));
    for (size_t i = 0; i < 2048; ++i) {
      texts[0][i] = static_cast<int32_t>(i * i % 4000);
      texts[1][i] = static_cast<int32_t>(i * 7 % 3989);
    }
    return LossMeter(Model::load("models/needle_7m"), texts);
  }
  static AttentionSettings settings(SelectorMethod method, float density) {
    AttentionSettings settings;
    settings.min_sparse_len = 0;
    settings.selector.emplace().method = method;
    settings.selector->density = density;
    return settings;
  }
};

TEST_F(LossOfTheNeedleModel, IsNothingWhenAllIsReadAndMoreWhenLittleIs) {
  const LossMeter meter = make_meter();
  const AttentionLoss all = meter.measure(settings(SelectorMethod::kCentroid, 1));
  EXPECT_EQ(all.density, 1);
  EXPECT_EQ(all.value(LossKind::kAgreement), 0);
  EXPECT_EQ(all.agreement.num_positions, 2 * 1024);  // the second halves
  double last_share = -1;
  const AttentionLoss some =
      meter.measure(settings(SelectorMethod::kCentroid, 0.3f), {.progress =
                                                                    [&](double share) {
                                                                      EXPECT_GE(share, last_share);
                                                                      last_share = share;
                                                                    },
                                                                .cancel = nullptr,
                                                                .num_logit_rows = 1});
  EXPECT_EQ(last_share, 1);
  EXPECT_LT(some.density, 0.5);
  EXPECT_GT(some.value(LossKind::kAgreement), 0);
  const Interval interval = some.interval(LossKind::kAgreement);
  EXPECT_LT(interval.low, some.value(LossKind::kAgreement));
  EXPECT_GT(interval.high, some.value(LossKind::kAgreement));
  EXPECT_DOUBLE_EQ(some.value(LossKind::kNll), some.agreement.nll_increase);
}

TEST_F(LossOfTheNeedleModel, NeedsTexts) {
  EXPECT_THROW(LossMeter(Model::load("models/needle_7m"), {}), Error);
}

}  // namespace
}  // namespace fovea::quality
