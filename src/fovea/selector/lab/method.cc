#include "fovea/selector/lab/method.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

#include "fovea/base/checked_math.h"
#include "fovea/base/cpu_features.h"
#include "fovea/base/parallel.h"
#include "fovea/tensor/bfloat16.h"

namespace fovea::lab {
namespace {

void widen_row(const TensorView& tensor, int64_t offset, int64_t count, float* to) {
  if (tensor.dtype == DType::kF32) {
    std::copy_n(tensor.as<float>() + offset, count, to);
    return;
  }
  const BFloat16* from = tensor.as<BFloat16>() + offset;
  for (int64_t c = 0; c < count; ++c) to[c] = to_float(from[c]);
}

}  // namespace

const PlaneOps& plane_ops() {
#if defined(__x86_64__)
  if (cpu_features().avx512) return kAvx512PlaneOps;
  if (cpu_features().avx2) return kAvx2PlaneOps;
#endif
  return kPortablePlaneOps;
}

Sequence::Sequence(const SelectorParams& params_in, const SequencePlan& plan_in,
                   const Context& context_in)
    : params(params_in),
      plan(plan_in),
      context(context_in),
      block_size(params.settings.block_size),
      head_dim(params.q.shape[2]),
      num_q_heads(params.q.shape[1]),
      num_kv_heads(params.kv.num_kv_heads()),
      num_blocks(plan.end_block - 1),
      scale_log2((params.softmax_scale > 0 ? params.softmax_scale
                                           : 1 / std::sqrt(static_cast<float>(head_dim))) *
                 std::numbers::log2e_v<float>),
      bad_(static_cast<size_t>(num_kv_heads * num_blocks)),
      largest_key_(bad_.size()) {
  const BlockStatsView& stats = params.stats;
  std::vector<float> centroid(static_cast<size_t>(head_dim));
  for (int64_t h = 0; h < num_kv_heads; ++h) {
    double largest = 0;
    for (int64_t b = 0; b < num_blocks; ++b) {
      const int64_t entry = stats_entry(params, plan.seq, b);
      const auto i = static_cast<size_t>(h * num_blocks + b);
      const auto of_head = [&](const TensorView& t) {
        return entry * t.stride[0] + h * t.stride[1];
      };
      bad_[i] = stats.non_finite.as<int32_t>()[of_head(stats.non_finite)] != 0 ? 1 : 0;
      if (bad_[i] == 0) {
        read_statistic(stats.centroid, b, h, centroid.data());
        double square = 0;
        for (const float x : centroid) square += static_cast<double>(x) * static_cast<double>(x);
        const float radius = stats.radius.as<float>()[of_head(stats.radius)];
        largest = std::max(largest, std::sqrt(square) + static_cast<double>(radius));
      }
      largest_key_[i] = largest;
    }
  }
}

void Sequence::read_query(int64_t q_head, int64_t row, float* to) const {
  const TensorView& q = params.q;
  widen_row(q, (plan.q_row + row) * q.stride[0] + q_head * q.stride[1], head_dim, to);
}

void Sequence::read_key(int64_t head, int64_t key, float* to) const {
  const KvView& kv = params.kv;
  const int64_t offset =
      kv.is_paged() ? stats_entry(params, plan.seq, key / block_size) * kv.k.stride[0] +
                          head * kv.k.stride[1] + key % block_size * kv.k.stride[2]
                    : (kv.kv_offsets[plan.seq] + key) * kv.k.stride[0] + head * kv.k.stride[1];
  widen_row(kv.k, offset, head_dim, to);
}

void Sequence::read_statistic(const TensorView& statistic, int64_t block, int64_t row,
                              float* to) const {
  const int64_t entry = stats_entry(params, plan.seq, block);
  widen_row(statistic, entry * statistic.stride[0] + row * statistic.stride[1], head_dim, to);
}

double Sequence::largest_key(int64_t head, int64_t end) const {
  return end > 0 ? largest_key_[static_cast<size_t>(head * num_blocks + end - 1)] : 0.0;
}

PackedColumns::PackedColumns(int64_t num_heads, int64_t num_cols, int64_t depth,
                             const Context& context, const Fill& fill)
    : depth_(depth) {
  const int64_t num_tiles = ceil_div(num_cols, kTileCols);
  head_size_ = checked_mul(num_tiles * kTileCols, depth, "packed columns");
  data_ = Tensor(DType::kF32, {num_heads, num_tiles, depth, kTileCols});
  parallel_for(context, num_heads * num_tiles, [&](int64_t task, int32_t) {
    const int64_t head = task / num_tiles, first = task % num_tiles * kTileCols;
    float* const tile = data_.as<float>() + head * head_size_ + first * depth;
    std::vector<float> column(static_cast<size_t>(depth));
    for (int64_t lane = 0; lane < std::min(kTileCols, num_cols - first); ++lane) {
      fill(head, first + lane, column.data());
      for (int64_t c = 0; c < depth; ++c) {
        tile[c * kTileCols + lane] = column[static_cast<size_t>(c)];
      }
    }
  });
}

Plane Scratch::plane(int which, int64_t num_rows, int64_t num_cols) {
  Plane plane{nullptr, num_rows, ceil_div(num_cols, kTileCols)};
  const int64_t padded_rows = ceil_div(num_rows, kRowsAtOnce) * kRowsAtOnce;
  const auto size = static_cast<size_t>(padded_rows * plane.num_cols());
  std::vector<float>& buffer = planes[which];
  if (buffer.size() < size) buffer.resize(size);
  if (of_row.size() < static_cast<size_t>(padded_rows)) {
    of_row.resize(static_cast<size_t>(padded_rows));
  }
  if (of_col.size() < static_cast<size_t>(plane.num_cols())) {
    of_col.resize(static_cast<size_t>(plane.num_cols()));
  }
  plane.data = buffer.data();
  return plane;
}

Plane make_plane(const float* rows, int64_t num_rows, const PackedColumns& columns, int64_t head,
                 int64_t num_cols, float scale, Scratch& scratch, int which) {
  const Plane plane = scratch.plane(which, num_rows, num_cols);
  plane_ops().product(rows, columns.of_head(head), columns.depth(), scale, plane);
  for (int64_t r = 0; r < num_rows; ++r) {
    std::fill(plane.row(r) + num_cols, plane.row(r) + plane.num_cols(), kUnseen);
  }
  return plane;
}

void hide_bad(const Sequence& sequence, const QueryBlock& block, const Plane& plane,
              int64_t cols_per_block) {
  for (int64_t b = 0; b < block.index; ++b) {
    if (!sequence.is_bad(block.kv_head, b)) continue;
    for (int64_t r = 0; r < plane.num_rows; ++r) {
      std::fill_n(plane.row(r) + b * cols_per_block, cols_per_block, kUnseen);
    }
  }
}

void hide_non_finite(const Plane& plane, int64_t first, int64_t end) {
  for (int64_t r = 0; r < plane.num_rows; ++r) {
    for (float* logit = plane.row(r) + first; logit < plane.row(r) + end; ++logit) {
      if (!std::isfinite(*logit)) *logit = kUnseen;
    }
  }
}

void judge_by_alpha(const Sequence& sequence, const QueryBlock& block, const Plane& plane,
                    Scratch& scratch, Verdict& verdict) {
  const SelectorSettings& settings = sequence.params.settings;
  const PlaneOps& ops = plane_ops();
  if (settings.aggregation == Aggregation::kSum) {
    ops.sum_of_cols(plane, scratch.of_col.data());
  } else {
    ops.sum_of_rows(plane, scratch.of_row.data());
    ops.max_of_cols(plane, scratch.of_row.data(), scratch.of_col.data());
  }
  std::copy_n(scratch.of_col.begin(), block.index, verdict.score.begin());
  const int64_t first = settings.forced_in_maximum ? 0 : block.forced.sink_end;
  const int64_t end = settings.forced_in_maximum ? block.index : block.forced.local_begin;
  float best = -std::numeric_limits<float>::infinity();
  for (int64_t b = first; b < end; ++b) {
    if (sequence.is_bad(block.kv_head, b)) continue;
    best = std::max(best, verdict.score[static_cast<size_t>(b)]);
  }
  const float least = best + std::log2(settings.alpha_base);
  for (size_t b = 0; b < static_cast<size_t>(block.index); ++b) {
    verdict.keep[b] = verdict.score[b] >= least ? 1 : 0;
  }
}

double coverage_of(const SelectorSettings& settings) {
  const float coverage =
      settings.coverage > 0 ? settings.coverage : default_coverage(settings.method);
  return static_cast<double>(coverage);
}

void sort_by_score(const std::vector<float>& score, std::vector<int32_t>& blocks) {
  std::sort(blocks.begin(), blocks.end(), [&](int32_t a, int32_t b) {
    const float x = score[static_cast<size_t>(a)], y = score[static_cast<size_t>(b)];
    return x != y ? x > y : a < b;
  });
}

void keep_coverage(const Sequence& sequence, const QueryBlock& block, double rest, double coverage,
                   Verdict& verdict) {
  double total = rest, kept = rest;
  std::vector<int32_t> candidates;
  for (int64_t b = 0; b < block.index; ++b) {
    if (sequence.is_bad(block.kv_head, b)) continue;
    const auto share = static_cast<double>(verdict.score[static_cast<size_t>(b)]);
    total += share;
    const bool is_forced = b < block.forced.sink_end || b >= block.forced.local_begin;
    if (is_forced || verdict.keep[static_cast<size_t>(b)] != 0) {
      kept += share;
    } else {
      candidates.push_back(static_cast<int32_t>(b));
    }
  }
  sort_by_score(verdict.score, candidates);
  for (const int32_t b : candidates) {
    if (kept >= coverage * total) return;
    verdict.keep[static_cast<size_t>(b)] = 1;
    kept += static_cast<double>(verdict.score[static_cast<size_t>(b)]);
  }
}

}  // namespace fovea::lab
