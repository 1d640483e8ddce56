#include "tests/selector/list_judge.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>

#include "fovea/selector/reference/reference_selector.h"
#include "tests/selector/selector_case.h"

namespace fovea::testing {
namespace {

// One list, and what the reference makes of its blocks.
class Judge {
 public:
  Judge(const SelectorParams& params, const SequencePlan& plan, int64_t q_head, int64_t q_block,
        double near_tie)
      : settings_(params.settings),
        scores_(reference_scores(params, plan, q_head, q_block)),
        forced_(forced_blocks(params.settings, plan, q_block)),
        q_block_(q_block),
        near_tie_(near_tie) {}

  /// Whether dropping or keeping `block` was decided by less than the near-tie; `other_side` are
  /// the blocks that the other list has instead.
  bool is_near_tie(int32_t block, const std::vector<int32_t>& other_side) const {
    for (size_t branch = 0; branch < scores_.branches.size(); ++branch) {
      const std::vector<double>& score = scores_.branches[branch];
      const double own = score[static_cast<size_t>(block)];
      if (settings_.density > 0) {
        for (const int32_t b : other_side) {
          if (std::abs(score[static_cast<size_t>(b)] - own) < near_tie_) return true;
        }
      } else if (std::abs(own - threshold(branch)) < near_tie_) {
        return true;
      }
    }
    return false;
  }

 private:
  double threshold(size_t branch) const {
    double best = -std::numeric_limits<double>::infinity();
    for (int64_t b = 0; b < q_block_; ++b) {
      const bool is_candidate = b >= forced_.sink_end && b < forced_.local_begin;
      const auto at = static_cast<size_t>(b);
      if ((is_candidate || settings_.forced_in_maximum) && !scores_.non_finite[at]) {
        best = std::max(best, scores_.branches[branch][at]);
      }
    }
    const float alpha = branch == 0 ? settings_.alpha_base : settings_.alpha_rescue;
    return best + std::log(static_cast<double>(alpha));
  }

  const SelectorSettings& settings_;
  ReferenceScores scores_;
  ForcedBlocks forced_;
  int64_t q_block_;
  double near_tie_;
};

std::vector<int32_t> only_in(const std::vector<int32_t>& a, const std::vector<int32_t>& b) {
  std::vector<int32_t> result;
  std::set_difference(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(result));
  return result;
}

}  // namespace

void expect_reference_lists(const SelectorParams& params, const BlockSelection& got,
                            ListTolerance tolerance) {
  BlockSelection expected;
  reference_selector().run(params, {}, expected);
  ASSERT_EQ(got.num_q_blocks, expected.num_q_blocks);
  ASSERT_EQ(got.q_block_offsets, expected.q_block_offsets);
  EXPECT_EQ(got.causal_pairs, expected.causal_pairs);
  EXPECT_EQ(got.forced_pairs, expected.forced_pairs);
  EXPECT_EQ(got.non_finite_pairs, expected.non_finite_pairs);
  EXPECT_EQ(got.kept_pairs, static_cast<int64_t>(got.blocks.size()));
  int64_t num_different = 0;
  for (const SequencePlan& plan : plan_sequences(params)) {
    for (int64_t h = 0; h < params.q.shape[1]; ++h) {
      for (int64_t i = plan.first_block; i < plan.end_block; ++i) {
        const int64_t row = plan.q_block_offset + i - plan.first_block;
        const std::vector<int32_t> want = list_of(expected, h, row), have = list_of(got, h, row);
        ASSERT_TRUE(std::is_sorted(have.begin(), have.end()));
        if (want == have) continue;
        ++num_different;
        const Judge judge(params, plan, h, i, tolerance.near_tie);
        const std::vector<int32_t> missing = only_in(want, have), extra = only_in(have, want);
        for (const int32_t b : missing) {
          ASSERT_TRUE(judge.is_near_tie(b, extra))
              << "block " << b << " dropped from head " << h << ", q block " << i << " of sequence "
              << plan.seq;
        }
        for (const int32_t b : extra) {
          ASSERT_TRUE(judge.is_near_tie(b, missing))
              << "block " << b << " added to head " << h << ", q block " << i << " of sequence "
              << plan.seq;
        }
      }
    }
  }
  const auto num_lists = static_cast<double>(expected.num_q_blocks * expected.num_q_heads);
  EXPECT_LE(static_cast<double>(num_different), 1 + tolerance.share * num_lists);
}

}  // namespace fovea::testing
