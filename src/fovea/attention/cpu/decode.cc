#include "fovea/attention/cpu/decode.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>
#include <vector>

#include "fovea/attention/cpu/rows.h"
#include "fovea/attention/cpu/scratch.h"
#include "fovea/base/parallel.h"
#include "fovea/tensor/bfloat16.h"

namespace fovea::cpu {
namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

// Heads of one sequence that read the same keys: the group of a KV head, or with a selection one
// head and its list. Row r is query token r / num_heads of head first_head + r % num_heads.
struct Unit {
  int64_t sequence, kv_head;
  int64_t first_head, num_heads, num_rows;
  std::span<const int32_t> blocks = {};  // the list, without a selection none
  // Keys that any row sees, numbered as they come: along the list, without one by position.
  int64_t begin = 0, end = 0;
  int64_t first_partial = 0;  // in rows, where its partial results start
  int64_t num_splits() const { return ceil_div(end - begin, kSplitKeys); }
};

class Decode {
 public:
  Decode(const TileKernel& kernel, const AttentionParams& params, const Context& context)
      : kernel_(kernel), params_(params), context_(context), partial_size_(params.head_dim() + 2) {
    for (int64_t s = 0; s < params.batch.batch_size; ++s) {
      if (!is_decode(params, s)) continue;
      const int64_t num_heads = params.selection == nullptr ? params.group_size() : 1;
      for (int64_t h = 0; h < params.num_q_heads(); h += num_heads) add_unit(s, h, num_heads);
    }
  }

  void run() {
    if (units_.empty()) return;
    const Scratch scratch(checked_mul(num_partials_, partial_size_, "partial results") *
                          static_cast<int64_t>(sizeof(float)));
    partials_ = reinterpret_cast<float*>(scratch.data());
    parallel_for(context_, static_cast<int64_t>(splits_.size()), [&](int64_t i, int32_t) {
      const Split& split = splits_[static_cast<size_t>(i)];
      run_split(units_[split.unit], split.index);
    });
    parallel_for(context_, static_cast<int64_t>(units_.size()), [&](int64_t i, int32_t) {
      const Unit& unit = units_[static_cast<size_t>(i)];
      for (int64_t r = 0; r < unit.num_rows; ++r) combine(unit, r);
    });
  }

 private:
  struct Split {
    size_t unit;
    int64_t index;
  };

  // Position of the unit's key i.
  int64_t position(const Unit& unit, int64_t i) const {
    if (params_.selection == nullptr) return i;
    const int64_t block_size = params_.selection->block_size;
    return unit.blocks[static_cast<size_t>(i / block_size)] * block_size + i % block_size;
  }

  // How many of the unit's keys stand before `position`.
  int64_t num_before(const Unit& unit, int64_t position) const {
    if (params_.selection == nullptr) return position;
    const int64_t block_size = params_.selection->block_size, block = position / block_size;
    const auto found = std::lower_bound(unit.blocks.begin(), unit.blocks.end(), block);
    const bool is_listed = found != unit.blocks.end() && *found == block;
    return (found - unit.blocks.begin()) * block_size + (is_listed ? position % block_size : 0);
  }

  // The unit's keys that row r sees.
  KeyRange row_range(const Unit& unit, int64_t r) const {
    const int64_t first_row = params_.batch.q_offsets[unit.sequence];
    const int64_t q_len = params_.batch.q_offsets[unit.sequence + 1] - first_row;
    const int64_t kv_len = params_.batch.kv_lens[unit.sequence];
    const KeyRange range = visible_keys(params_, kv_len - q_len + r / unit.num_heads, kv_len);
    return {static_cast<int32_t>(num_before(unit, range.begin)),
            static_cast<int32_t>(num_before(unit, range.end))};
  }

  void add_unit(int64_t s, int64_t first_head, int64_t num_heads) {
    const int64_t q_len = params_.batch.q_offsets[s + 1] - params_.batch.q_offsets[s];
    Unit unit{s, first_head / params_.group_size(), first_head, num_heads, q_len * num_heads};
    if (params_.selection != nullptr) {
      const BlockSelectionView& selection = *params_.selection;
      const int64_t list = selection.list(first_head, s, 0);
      unit.blocks = {selection.blocks + selection.begin[list],
                     static_cast<size_t>(selection.len[list])};
    }
    unit.begin = row_range(unit, 0).begin;
    unit.end = std::max<int64_t>(unit.begin, row_range(unit, unit.num_rows - 1).end);
    unit.first_partial = num_partials_;
    num_partials_ += unit.num_splits() * unit.num_rows;
    for (int64_t i = 0; i < unit.num_splits(); ++i) splits_.push_back({units_.size(), i});
    units_.push_back(unit);
  }

  int64_t q_index(const Unit& unit, int64_t r) const {
    return params_.batch.q_offsets[unit.sequence] + r / unit.num_heads;
  }
  int64_t q_head(const Unit& unit, int64_t r) const { return unit.first_head + r % unit.num_heads; }
  // Outputs [num_rows, head_dim] of one split, then maxima [num_rows], then sums [num_rows].
  float* partial(const Unit& unit, int64_t split) const {
    return partials_ + (unit.first_partial + split * unit.num_rows) * partial_size_;
  }

  void run_split(const Unit& unit, int64_t index) const {
    const int64_t first = unit.begin + index * kSplitKeys;
    const int64_t end = std::min(unit.end, first + kSplitKeys);
    const std::byte *q[kMaxDecodeRows], *k[kSplitKeys], *v[kSplitKeys];
    int32_t row_begin[kMaxDecodeRows], row_end[kMaxDecodeRows];
    for (int64_t i = first; i < end; ++i) {
      const int64_t t = position(unit, i);
      k[i - first] = key_row(params_.kv, params_.kv.k, unit.sequence, unit.kv_head, t);
      v[i - first] = key_row(params_.kv, params_.kv.v, unit.sequence, unit.kv_head, t);
    }
    for (int64_t r = 0; r < unit.num_rows; ++r) {
      q[r] = q_row(params_.q, q_index(unit, r), q_head(unit, r));
      const KeyRange range = row_range(unit, r);
      row_begin[r] = static_cast<int32_t>(std::clamp<int64_t>(range.begin - first, 0, kSplitKeys));
      row_end[r] = static_cast<int32_t>(std::clamp<int64_t>(range.end - first, 0, kSplitKeys));
    }
    DecodeJob job;
    job.head_dim = params_.head_dim();
    job.is_bf16 = params_.q.dtype == DType::kBF16;
    job.softmax_scale = params_.scale();
    job.num_rows = static_cast<int32_t>(unit.num_rows);
    job.q = q;
    job.num_keys = static_cast<int32_t>(end - first);
    job.k = k;
    job.v = v;
    job.begin = row_begin;
    job.end = row_end;
    job.out = partial(unit, index);
    job.max = job.out + unit.num_rows * params_.head_dim();
    job.sum = job.max + unit.num_rows;
    kernel_.decode(job);
  }

  // Joins the splits of a row by their maxima and sums.
  void combine(const Unit& unit, int64_t r) const {
    const int64_t head_dim = params_.head_dim();
    const int64_t num_splits = unit.num_splits();
    const auto max_of = [&](int64_t i) {
      return partial(unit, i)[unit.num_rows * head_dim + r] * params_.scale();
    };
    const float sink =
        params_.sinks.empty() ? kMinusInfinity : params_.sinks.as<const float>()[q_head(unit, r)];
    float max = sink;
    for (int64_t i = 0; i < num_splits; ++i) max = std::max(max, max_of(i));
    std::vector<float> out(static_cast<size_t>(head_dim));
    float sum = sink == kMinusInfinity ? 0.0f : std::exp(sink - max);
    for (int64_t i = 0; i < num_splits; ++i) {
      const float* values = partial(unit, i);
      const float split_sum = values[unit.num_rows * (head_dim + 1) + r];
      if (split_sum == 0) continue;  // it sees nothing here
      const float weight = max_of(i) == max ? 1.0f : std::exp(max_of(i) - max);
      sum += weight * split_sum;
      for (int64_t d = 0; d < head_dim; ++d) {
        out[static_cast<size_t>(d)] += weight * values[r * head_dim + d];
      }
    }
    const float inverse = sum == 0 ? 0.0f : 1 / sum;
    std::byte* row = q_row(params_.out, q_index(unit, r), q_head(unit, r));
    for (int64_t d = 0; d < head_dim; ++d) {
      const float value = out[static_cast<size_t>(d)] * inverse;
      if (params_.q.dtype == DType::kBF16) {
        reinterpret_cast<BFloat16*>(row)[d] = to_bfloat16(value);
      } else {
        reinterpret_cast<float*>(row)[d] = value;
      }
    }
    if (params_.lse.empty()) return;
    params_.lse.as<float>()[q_head(unit, r) * params_.lse.stride[0] + q_index(unit, r)] =
        sum == 0 ? kMinusInfinity : max + std::log(sum);
  }

  const TileKernel& kernel_;
  const AttentionParams& params_;
  const Context& context_;
  const int64_t partial_size_;  // floats of a row: its output, maximum and sum
  std::vector<Unit> units_;
  std::vector<Split> splits_;
  int64_t num_partials_ = 0;
  float* partials_ = nullptr;
};

}  // namespace

bool is_decode(const AttentionParams& params, int64_t s) {
  const int64_t q_len = params.batch.q_offsets[s + 1] - params.batch.q_offsets[s];
  if (q_len == 0 || q_len > kMaxDecodeRows / params.group_size()) return false;
  if (params.selection == nullptr) return true;
  const int64_t kv_len = params.batch.kv_lens[s], block_size = params.selection->block_size;
  return !params.periphery.enabled() &&
         (kv_len - q_len) / block_size == (kv_len - 1) / block_size;  // one list for all tokens
}

void decode(const TileKernel& kernel, const AttentionParams& params, const Context& context) {
  Decode(kernel, params, context).run();
}

}  // namespace fovea::cpu
