// Scores of one query block, written once and compiled once per instruction set (see vector16.h).
//
// A lane is a KV block: for a group of 16 blocks and one representative of each, a product fills a
// tile of logits [rows, 16]; the reductions over the query's rows then run straight down the lanes.
// Nothing here is larger than one tile, whatever the number of blocks.
#pragma once

#include <algorithm>
#include <cmath>

#include "fovea/selector/cpu/score_task.h"
#include "fovea/selector/cpu/vector16.h"
#include "fovea/selector/selection_rules.h"

namespace fovea {
namespace {

// A product fills logits[row, lane] = q[row] . (representative `rep` of the group's block `lane`),
// kRows rows at a time.

// sums[i] = the sum of lanes[i]'s lanes. Halves the vectors until one is left.
[[gnu::always_inline]] inline F32x16 sums_of_16(F32x16 (&lanes)[16]) {
  const I32x16 kEven = {0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30};
  const I32x16 kOdd = kEven + 1;
  for (int num = 8; num > 0; num /= 2) {
    for (int i = 0; i < num; ++i) {
      const F32x16 a = lanes[2 * i], b = lanes[2 * i + 1];
      lanes[i] = __builtin_shuffle(a, b, kEven) + __builtin_shuffle(a, b, kOdd);
    }
  }
  return lanes[0];
}

// One row against representatives where they lie.
struct RowProduct {
  using Element = float;
  static constexpr int64_t kRows = 1;
  static void begin() {}
  static void end() {}
  static void run(const ScoreTask& task, int64_t group, int64_t rep, const float* q, int64_t,
                  float* logits) {
    if (task.q_is_bf16) {
      run<BFloat16>(task, group, rep, q, logits);
    } else {
      run<float>(task, group, rep, q, logits);
    }
  }

 private:
  template <typename T>
  static void run(const ScoreTask& task, int64_t group, int64_t rep, const float* q,
                  float* logits) {
    const int64_t first = group * kGroupBlocks;
    const int64_t count = std::min(kGroupBlocks, task.num_blocks - first);
    const int64_t whole = task.head_dim / kLanes * kLanes;
    F32x16 sum[kGroupBlocks] = {};
    for (int64_t i = 0; i < count; ++i) {
      const T* row = static_cast<const T*>(task.rep_rows[(first + i) * task.num_reps + rep]);
      for (int64_t c = 0; c < whole; c += kLanes) sum[i] += widen(row + c) * widen(q + c);
      if (whole < task.head_dim) {
        const int64_t left = task.head_dim - whole;
        sum[i] += load(row + whole, left) * load(q + whole, left);
      }
    }
    store(logits, sums_of_16(sum));
  }
};

template <typename Element>
const Element* packed_tile(const ScoreTask& task, int64_t group, int64_t rep) {
  return static_cast<const Element*>(task.packed) +
         (group * task.num_reps + rep) * task.head_dim * kGroupBlocks;
}

// Packed representatives in f32.
struct F32Product {
  using Element = float;
  static constexpr int64_t kRows = 16;
  static void begin() {}
  static void end() {}
  static void run(const ScoreTask& task, int64_t group, int64_t rep, const float* q, int64_t rows,
                  float* logits) {
    const int64_t head_dim = task.head_dim;
    const float* packed = packed_tile<float>(task, group, rep);
#if defined(__AVX512F__)
    constexpr int64_t kAtOnce = 16;
#else
    constexpr int64_t kAtOnce = 4;  // 16 lanes are two or four registers here
#endif
    for (int64_t r = 0; r < rows; r += kAtOnce) {
      F32x16 sum[kAtOnce] = {};
      for (int64_t c = 0; c < head_dim; ++c) {
        const F32x16 column = widen(packed + c * kGroupBlocks);
        for (int64_t i = 0; i < kAtOnce; ++i) sum[i] += column * q[(r + i) * head_dim + c];
      }
      for (int64_t i = 0; i < kAtOnce; ++i) store(logits + (r + i) * kGroupBlocks, sum[i]);
    }
  }
};

// Copies the rows next to each other, zeros behind them up to `num_rows`, and writes ||q||_2 of
// each row.
template <typename Element, typename T>
void gather_queries(const ScoreTask& task, int64_t num_rows, Element* rows, float* norms) {
  const T* q = static_cast<const T*>(task.q);
  for (int64_t r = 0; r < num_rows; ++r) {
    Element* row = rows + r * task.head_dim;
    F32x16 square = {};
    for (int64_t c = 0; c < task.head_dim; c += kLanes) {
      const int64_t count = std::min(kLanes, task.head_dim - c);
      const F32x16 x = r < task.num_rows ? load(q + r * task.q_stride + c, count) : F32x16{};
      square += x * x;
      if constexpr (std::is_same_v<Element, T>) {
        if (r < task.num_rows) {
          std::memcpy(row + c, q + r * task.q_stride + c,
                      static_cast<size_t>(count) * sizeof(Element));
        } else {
          std::fill_n(row + c, count, Element{});
        }
      } else {
        std::memcpy(row + c, &x, static_cast<size_t>(count) * sizeof(float));
      }
    }
    norms[r] = std::sqrt(sum_lanes(square));
  }
}

template <typename Product>
class BlockScorer {
 public:
  using Element = typename Product::Element;

  explicit BlockScorer(const ScoreTask& task)
      : task_(task),
        rows_((task.num_rows + Product::kRows - 1) / Product::kRows * Product::kRows),
        num_groups_((task.num_blocks + kGroupBlocks - 1) / kGroupBlocks),
        tile_(task.scratch),
        row_max_(tile_ + rows_ * kGroupBlocks),
        row_sum_(row_max_ + rows_ * kGroupBlocks),
        norms_(row_sum_ + rows_ * kGroupBlocks),
        row_lse_(norms_ + rows_),
        q_(reinterpret_cast<Element*>(row_lse_ + rows_)) {}

  bool run() {
    if constexpr (std::is_same_v<Element, float>) {
      if (task_.q_is_bf16) {
        gather_queries<Element, BFloat16>(task_, rows_, q_, norms_);
      } else {
        gather_queries<Element, float>(task_, rows_, q_, norms_);
      }
    } else {
      gather_queries<Element, BFloat16>(task_, rows_, q_, norms_);
    }
    double largest = 0;
    for (int64_t r = 0; r < task_.num_rows; ++r) {
      const auto norm = static_cast<double>(norms_[r]);
      if (!(norm * norm <= kLargestLogit)) return false;
      largest = std::max(largest, norm);
    }
    if (!(largest * task_.largest_key <= kLargestLogit)) return false;
    Product::begin();
    if (task_.aggregation == Aggregation::kSum) {
      for (int64_t g = 0; g < num_groups_; ++g) sum_group(g);
    } else {
      for (int64_t x = 0; x < task_.num_branches; ++x) {
        normalise_rows(x);
        for (int64_t g = 0; g < num_groups_; ++g) max_group(g, x);
      }
    }
    Product::end();
    return true;
  }

 private:
  void fill_tile(int64_t group, int64_t rep) { Product::run(task_, group, rep, q_, rows_, tile_); }

  // What a lane adds to scale * logit, apart from the uplift.
  [[gnu::always_inline]] F32x16 bias(int64_t group, int64_t rep) const {
    F32x16 lanes = widen(task_.block_mask + group * kGroupBlocks) + task_.rep_bias[rep];
    for (int64_t i = task_.num_blocks - group * kGroupBlocks; i < kLanes; ++i) lanes[i] = kMasked;
    return lanes;
  }

  [[gnu::always_inline]] F32x16 uplift(int64_t group, int64_t branch) const {
    if (task_.uplift[branch] == nullptr) return F32x16{};
    return widen(task_.uplift[branch] + group * kGroupBlocks) * task_.scale;
  }

  [[gnu::always_inline]] F32x16 logit(int64_t row, F32x16 lane_bias, F32x16 lane_uplift) const {
    return widen(tile_ + row * kGroupBlocks) * task_.scale + lane_bias + lane_uplift * norms_[row];
  }

  // log2 of the sum over rows and representatives of 2^logit, per lane.
  //
  // Sums are relative to the first row's logit, which saves a pass that looks for the maximum. Only
  // when logits rise more than 2^120 above it, sums overflow and are taken again relative to the
  // maximum. Terms that underflow are nothing beside the first row's own.
  void sum_group(int64_t group) {
    F32x16 shift[2], sum[2];
    fill_tile(group, 0);
    for (int64_t x = 0; x < task_.num_branches; ++x) {
      shift[x] = logit(0, bias(group, 0), uplift(group, x));
    }
    sum_reps(group, shift, sum);
    if (any(sum[0] >= kLargestSum) || any(sum[1] >= kLargestSum)) {
      largest_of_reps(group, shift);
      sum_reps(group, shift, sum);
    }
    for (int64_t x = 0; x < task_.num_branches; ++x) {
      store(task_.score[x] + group * kGroupBlocks, shift[x] + log2_lanes(sum[x]));
    }
  }

  // sum[branch] = sum of 2^(logit - shift[branch]); expects the first representative's tile.
  void sum_reps(int64_t group, const F32x16* shift, F32x16* sum) {
    sum[0] = sum[1] = F32x16{};
    for (int64_t rep = 0; rep < task_.num_reps; ++rep) {
      if (rep > 0) fill_tile(group, rep);
      const F32x16 lane_bias = bias(group, rep);
      for (int64_t x = 0; x < task_.num_branches; ++x) {
        sum[x] += task_.uplift[x] == nullptr
                      ? sum_rows<false>(lane_bias - shift[x], F32x16{})
                      : sum_rows<true>(lane_bias - shift[x], uplift(group, x));
      }
    }
  }

  // Two chains of additions, or their latency would rule.
  template <bool kLifted>
  F32x16 sum_rows(F32x16 lane_bias, F32x16 lane_uplift) const {
    const auto power = [&](int64_t row) {
      const F32x16 x = widen(tile_ + row * kGroupBlocks) * task_.scale + lane_bias;
      return exp2_lanes(kLifted ? x + lane_uplift * norms_[row] : x);
    };
    F32x16 even = {}, odd = {};
    int64_t row = 0;
    for (; row + 2 <= task_.num_rows; row += 2) {
      even += power(row);
      odd += power(row + 1);
    }
    if (row < task_.num_rows) even += power(row);
    return even + odd;
  }

  // largest[branch] = maximum over rows and representatives; leaves the first one's tile.
  void largest_of_reps(int64_t group, F32x16* largest) {
    largest[0] = largest[1] = F32x16{} + 2 * kMasked;
    for (int64_t rep = task_.num_reps - 1; rep >= 0; --rep) {
      fill_tile(group, rep);
      const F32x16 lane_bias = bias(group, rep);
      for (int64_t x = 0; x < task_.num_branches; ++x) {
        const F32x16 lane_uplift = uplift(group, x);
        for (int64_t r = 0; r < task_.num_rows; ++r) {
          largest[x] = larger(largest[x], logit(r, lane_bias, lane_uplift));
        }
      }
    }
  }

  // row_lse_[row] = log2 of the row's sum over all blocks, of the representatives asked for. Lanes
  // keep sums of their own, relative to a shift that follows their maximum only when it is left far
  // behind, so that a logit costs one exponential.
  void normalise_rows(int64_t branch) {
    constexpr float kSlack = 16;
    const int64_t lanes = task_.num_rows * kGroupBlocks;
    std::fill(row_max_, row_max_ + lanes, 2 * kMasked);
    std::fill(row_sum_, row_sum_ + lanes, 0.0f);
    for (int64_t g = 0; g < num_groups_; ++g) {
      const F32x16 lane_uplift = uplift(g, branch);
      for (int64_t rep = task_.first_normaliser_rep; rep < task_.num_reps; ++rep) {
        fill_tile(g, rep);
        const F32x16 lane_bias = bias(g, rep);
        for (int64_t r = 0; r < task_.num_rows; ++r) {
          const F32x16 x = logit(r, lane_bias, lane_uplift);
          F32x16 shift = widen(row_max_ + r * kGroupBlocks);
          F32x16 sum = widen(row_sum_ + r * kGroupBlocks);
          if (any(x > shift + kSlack)) {
            const F32x16 raised = larger(x, shift);
            sum *= exp2_lanes(shift - raised);
            shift = raised;
            store(row_max_ + r * kGroupBlocks, shift);
          }
          store(row_sum_ + r * kGroupBlocks, sum + exp2_lanes(x - shift));
        }
      }
    }
    for (int64_t r = 0; r < task_.num_rows; ++r) {
      const F32x16 shift = widen(row_max_ + r * kGroupBlocks);
      float most = shift[0];
      for (int i = 1; i < kLanes; ++i) most = std::max(most, shift[i]);
      const F32x16 sums = widen(row_sum_ + r * kGroupBlocks) * exp2_lanes(shift - most);
      row_lse_[r] = most + std::log2(sum_lanes(sums));
    }
  }

  // The largest log2 probability that any row gives to each lane's block.
  void max_group(int64_t group, int64_t branch) {
    F32x16 best = F32x16{} + 2 * kMasked;
    const F32x16 lane_uplift = uplift(group, branch);
    if (task_.num_reps == 1) {
      fill_tile(group, 0);
      const F32x16 lane_bias = bias(group, 0);
      for (int64_t r = 0; r < task_.num_rows; ++r) {
        best = larger(best, logit(r, lane_bias, lane_uplift) - row_lse_[r]);
      }
    } else {
      // row_max_ and row_sum_ hold each row's running sum over the representatives.
      for (int64_t rep = 0; rep < task_.num_reps; ++rep) {
        fill_tile(group, rep);
        const F32x16 lane_bias = bias(group, rep);
        for (int64_t r = 0; r < task_.num_rows; ++r) {
          const F32x16 x = logit(r, lane_bias, lane_uplift);
          if (rep == 0) {
            store(row_max_ + r * kGroupBlocks, x);
            store(row_sum_ + r * kGroupBlocks, F32x16{} + 1.0f);
            continue;
          }
          const F32x16 before = widen(row_max_ + r * kGroupBlocks);
          const F32x16 after = larger(before, x);
          const F32x16 sum = widen(row_sum_ + r * kGroupBlocks) * exp2_lanes(before - after);
          store(row_sum_ + r * kGroupBlocks, sum + exp2_lanes(x - after));
          store(row_max_ + r * kGroupBlocks, after);
        }
      }
      for (int64_t r = 0; r < task_.num_rows; ++r) {
        const F32x16 mass =
            widen(row_max_ + r * kGroupBlocks) + log2_lanes(widen(row_sum_ + r * kGroupBlocks));
        best = larger(best, mass - row_lse_[r]);
      }
    }
    store(task_.score[branch] + group * kGroupBlocks, best);
  }

  static constexpr float kLargestSum = 0x1p120f;

  const ScoreTask& task_;
  const int64_t rows_, num_groups_;
  float *tile_, *row_max_, *row_sum_, *norms_, *row_lse_;
  Element* q_;
};

/// Scores with `Product`, or a single row without packing.
template <typename Product>
bool score_blocks(const ScoreTask& task) {
  return task.rep_rows != nullptr ? BlockScorer<RowProduct>(task).run()
                                  : BlockScorer<Product>(task).run();
}

}  // namespace
}  // namespace fovea
