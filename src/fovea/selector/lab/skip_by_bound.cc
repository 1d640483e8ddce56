// `witness` that does not look at blocks which their radius rules out. A block's rows lie in a ball
// around its centroid, so the logit of each is at most scale * (q.c + ||q|| r), and the block's
// score at most that of B such rows. Blocks are looked at in the order of these bounds, until no
// bound left reaches what a block needs to be kept.
#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "fovea/base/parallel.h"
#include "fovea/selector/lab/method.h"

namespace fovea::lab {
namespace {

// What rounding may add to a score beside its bound: both come from f32 sums.
float slack(float bound) { return 1e-3f + 1e-5f * std::abs(bound); }

// The best scores so far, as many as the budget leaves, or one.
class BestScores {
 public:
  explicit BestScores(size_t count) : count_(count) {}
  void add(float score) {
    const auto at = std::upper_bound(best_.begin(), best_.end(), score, std::greater<float>());
    best_.insert(at, score);
    if (best_.size() > count_) best_.pop_back();
  }
  bool is_full() const { return best_.size() == count_; }
  float least() const { return best_.back(); }

 private:
  size_t count_;
  std::vector<float> best_;  // the largest first
};

class SkipByBound final : public Method {
 public:
  explicit SkipByBound(const Sequence& sequence)
      : sequence_(sequence),
        num_witnesses_(sequence.params.stats.num_witnesses),
        radius_(static_cast<size_t>(sequence.num_kv_heads * sequence.num_blocks)) {
    const auto pack = [&](int64_t num_cols, const PackedColumns::Fill& fill) {
      return PackedColumns(sequence.num_kv_heads, num_cols, sequence.head_dim, sequence.context,
                           fill);
    };
    centroids_ = pack(sequence.num_blocks, [&](int64_t head, int64_t block, float* column) {
      sequence.read_statistic(sequence.params.stats.centroid, block, head, column);
    });
    // A tile for each block, so that one can be looked at alone.
    rows_ = pack(sequence.num_blocks * kTileCols, [&](int64_t head, int64_t col, float* column) {
      read_row(head, col / kTileCols, col % kTileCols, column);
    });
    parallel_for(sequence.context, std::ssize(radius_), [&](int64_t task, int32_t) {
      const int64_t head = task / sequence.num_blocks, block = task % sequence.num_blocks;
      if (!sequence.is_bad(head, block)) {
        radius_[static_cast<size_t>(task)] = radius_of_rows(head, block);
      }
    });
  }

  void judge(const QueryBlock& block, Scratch& scratch, Verdict& verdict) const override {
    const SelectorSettings& settings = sequence_.params.settings;
    const bool has_budget = settings.density > 0;
    const auto is_forced = [&](int64_t b) {
      return b < block.forced.sink_end || b >= block.forced.local_begin;
    };
    std::vector<int32_t> order;
    int64_t num_wanted = 1;  // without a budget the best one says what the others need
    if (has_budget) {
      num_wanted =
          sequence_.plan.budget[static_cast<size_t>(block.index)] - block.forced.count(block.index);
    }
    for (int64_t b = 0; b < block.index; ++b) {
      if (sequence_.is_bad(block.kv_head, b)) {
        num_wanted -= has_budget && !is_forced(b) ? 1 : 0;
      } else if (!is_forced(b) || (settings.forced_in_maximum && !has_budget)) {
        order.push_back(static_cast<int32_t>(b));
      }
    }
    std::fill(verdict.score.begin(), verdict.score.end(), kUnseen);
    if (num_wanted <= 0) return;
    const std::vector<float> bound = bounds(block, scratch);
    sort_by_score(bound, order);
    BestScores best(static_cast<size_t>(num_wanted));
    const float alpha = has_budget ? 0.0f : std::log2(settings.alpha_base);
    size_t num_seen = 0;
    for (; num_seen < order.size(); ++num_seen) {
      const auto b = static_cast<size_t>(order[num_seen]);
      if (best.is_full() && bound[b] + slack(bound[b]) < best.least() + alpha) break;
      verdict.score[b] = score_of(block, order[num_seen], scratch);
      best.add(verdict.score[b]);
    }
    verdict.num_skipped = std::ssize(order) - static_cast<int64_t>(num_seen);
    for (size_t b = 0; !has_budget && b < verdict.score.size(); ++b) {
      verdict.keep[b] = verdict.score[b] >= best.least() + alpha ? 1 : 0;
    }
  }

 private:
  // Row `row` of a block, its witnesses first, then the mean of the rest; zeros behind them.
  void read_row(int64_t head, int64_t block, int64_t row, float* to) const {
    const BlockStatsView& stats = sequence_.params.stats;
    if (row < num_witnesses_) {
      sequence_.read_statistic(stats.witness, block, head * num_witnesses_ + row, to);
    } else if (row == num_witnesses_) {
      sequence_.read_statistic(stats.rest_mean, block, head, to);
    } else {
      std::fill_n(to, sequence_.head_dim, 0.0f);
    }
  }

  // Of the rows as they are stored: the mean of the rest was rounded, witnesses may have been.
  float radius_of_rows(int64_t head, int64_t block) const {
    const auto size = static_cast<size_t>(sequence_.head_dim);
    std::vector<float> centroid(size), row(size);
    sequence_.read_statistic(sequence_.params.stats.centroid, block, head, centroid.data());
    double largest = 0;
    for (int64_t r = 0; r <= num_witnesses_; ++r) {
      read_row(head, block, r, row.data());
      double square = 0;
      for (size_t c = 0; c < size; ++c) {
        const double difference = static_cast<double>(row[c]) - static_cast<double>(centroid[c]);
        square += difference * difference;
      }
      largest = std::max(largest, std::sqrt(square));
    }
    return static_cast<float>(largest);
  }

  // What the scores of blocks [0, block.index) can be at most.
  std::vector<float> bounds(const QueryBlock& block, Scratch& scratch) const {
    const Plane plane = make_plane(block.rows, block.num_rows, centroids_, block.kv_head,
                                   block.index, sequence_.scale_log2, scratch);
    const float* const radius = radius_.data() + block.kv_head * sequence_.num_blocks;
    for (int64_t r = 0; r < plane.num_rows; ++r) {
      double square = 0;
      for (int64_t c = 0; c < sequence_.head_dim; ++c) {
        const auto x = static_cast<double>(block.rows[r * sequence_.head_dim + c]);
        square += x * x;
      }
      const float uplift = sequence_.scale_log2 * static_cast<float>(std::sqrt(square));
      for (int64_t b = 0; b < block.index; ++b) plane.row(r)[b] += uplift * radius[b];
    }
    hide_bad(sequence_, block, plane);
    plane_ops().sum_of_cols(plane, scratch.of_col.data());
    std::vector<float> result(scratch.of_col.begin(), scratch.of_col.begin() + block.index);
    for (float& bound : result) bound += std::log2(static_cast<float>(sequence_.block_size));
    return result;
  }

  float score_of(const QueryBlock& block, int64_t b, Scratch& scratch) const {
    const Plane tile = scratch.plane(1, block.num_rows, kTileCols);
    plane_ops().product(block.rows, rows_.of_head(block.kv_head) + b * rows_.depth() * kTileCols,
                        rows_.depth(), sequence_.scale_log2, tile);
    plane_ops().sum_of_cols(tile, scratch.of_col.data());
    float* const of_row = scratch.of_col.data();
    of_row[num_witnesses_] += std::log2(static_cast<float>(sequence_.block_size - num_witnesses_));
    const float most = *std::max_element(of_row, of_row + num_witnesses_ + 1);
    float sum = 0;
    for (int64_t w = 0; w <= num_witnesses_; ++w) sum += std::exp2(of_row[w] - most);
    return most + std::log2(sum);
  }

  const Sequence& sequence_;
  const int64_t num_witnesses_;
  PackedColumns centroids_, rows_;
  std::vector<float> radius_;  // [num_kv_heads, num_blocks]
};

}  // namespace

std::unique_ptr<Method> make_skip_by_bound(const Sequence& sequence) {
  return std::make_unique<SkipByBound>(sequence);
}

}  // namespace fovea::lab
