#include "fovea/attention/cpu/decode.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <deque>
#include <limits>
#include <span>
#include <vector>

#include "fovea/attention/cpu/rows.h"
#include "fovea/attention/cpu/scratch.h"
#include "fovea/attention/f8_pages.h"
#include "fovea/base/parallel.h"
#include "fovea/tensor/bfloat16.h"

namespace fovea::cpu {
namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

// The heads of one sequence that share a KV head. Row r is query token r / num_heads of head
// first_head + r % num_heads.
struct Unit {
  int64_t sequence, kv_head;
  int64_t first_head, num_heads, num_rows;
  size_t first_split = 0, end_split = 0;
  std::atomic<size_t> splits_left = 0;
};

// Consecutive keys of a unit and the heads that read them: all of them without a selection. A block
// that is in the lists of several heads passes through the cache once.
struct Split {
  Unit* unit;
  int64_t first_key, num_keys;
  uint32_t heads;             // bit i: head first_head + i
  int64_t first_partial = 0;  // in rows, where its partial results start

  bool has_head(int64_t i) const { return (heads >> i & 1u) != 0; }
  int64_t num_heads() const { return std::popcount(heads); }
  int64_t num_rows() const { return unit->num_rows / unit->num_heads * num_heads(); }
  // Which of the split's rows the unit's row r is.
  int64_t index_of(int64_t r) const {
    const uint32_t heads_before = (uint32_t{1} << r % unit->num_heads) - 1;
    return r / unit->num_heads * num_heads() + std::popcount(heads & heads_before);
  }
};

class Decode {
 public:
  Decode(const TileKernel& kernel, const AttentionParams& params, const Context& context)
      : kernel_(kernel), params_(params), context_(context), partial_size_(params.head_dim() + 2) {
    for (int64_t s = 0; s < params.batch.batch_size; ++s) {
      if (!is_decode(params, s)) continue;
      for (int64_t h = 0; h < params.kv.num_kv_heads(); ++h) add_unit(s, h);
    }
  }

  // A row's splits are joined by whoever finishes the last of them, in their own order: another
  // round over the threads would take longer than the work.
  void run() {
    if (units_.empty()) return;
    const Scratch scratch(checked_mul(num_partials_, partial_size_, "partial results") *
                          static_cast<int64_t>(sizeof(float)));
    partials_ = reinterpret_cast<float*>(scratch.data());
    const bool multiplies_codes = can_multiply_codes();
    const int64_t code_bytes =
        multiplies_codes ? kernel_.decode_scratch_bytes(params_.head_dim()) : 0;
    const Scratch code_scratch(code_bytes * resolve_num_threads(context_));
    for (const Unit& unit : units_) {
      if (unit.splits_left == 0) join_splits(unit);
    }
    parallel_for(context_, static_cast<int64_t>(splits_.size()), [&](int64_t i, int32_t thread) {
      const Split& split = splits_[static_cast<size_t>(i)];
      if (!multiplies_codes || !multiply_codes(split, code_scratch.data() + thread * code_bytes)) {
        run_split(split);
      }
      if (split.unit->splits_left.fetch_sub(1) == 1) join_splits(*split.unit);
    });
  }

 private:
  void add_unit(int64_t s, int64_t kv_head) {
    const int64_t group_size = params_.group_size();
    const int64_t q_len = params_.batch.q_offsets[s + 1] - params_.batch.q_offsets[s];
    Unit& unit = units_.emplace_back(s, kv_head, kv_head * group_size, group_size,
                                     q_len * group_size, splits_.size());
    // Later tokens see later keys.
    const int64_t begin = row_range(unit, 0).begin, end = row_range(unit, unit.num_rows - 1).end;
    if (params_.selection == nullptr) {
      add_keys(unit, begin, end, (uint32_t{1} << group_size) - 1);
    } else {
      add_listed_keys(unit, begin, end);
    }
    unit.end_split = splits_.size();
    unit.splits_left = unit.end_split - unit.first_split;
    for (size_t i = unit.first_split; i < unit.end_split; ++i) {
      splits_[i].first_partial = num_partials_;
      num_partials_ += splits_[i].num_rows();
    }
  }

  // Block by block, each with the heads whose lists name it.
  void add_listed_keys(Unit& unit, int64_t begin, int64_t end) {
    const BlockSelectionView& selection = *params_.selection;
    std::span<const int32_t> lists[kMaxDecodeRows];  // what is left of them
    for (int64_t i = 0; i < unit.num_heads; ++i) {
      const int64_t list = selection.list(unit.first_head + i, unit.sequence, 0);
      lists[i] = {selection.blocks + selection.begin[list],
                  static_cast<size_t>(selection.len[list])};
    }
    for (;;) {
      int64_t block = std::numeric_limits<int64_t>::max();
      uint32_t heads = 0;
      for (int64_t i = 0; i < unit.num_heads; ++i) {
        if (lists[i].empty() || lists[i][0] > block) continue;
        if (lists[i][0] < block) heads = 0;
        block = lists[i][0];
        heads |= uint32_t{1} << i;
      }
      if (heads == 0) return;
      for (int64_t i = 0; i < unit.num_heads; ++i) {
        if ((heads >> i & 1u) != 0) lists[i] = lists[i].subspan(1);
      }
      add_keys(unit, std::max(begin, block * selection.block_size),
               std::min(end, (block + 1) * selection.block_size), heads);
    }
  }

  // Keys [first, end), in splits of at most kSplitKeys; prolongs the last split where it can.
  void add_keys(Unit& unit, int64_t first, int64_t end, uint32_t heads) {
    while (first < end) {
      const bool continues = splits_.size() > unit.first_split && splits_.back().heads == heads &&
                             splits_.back().first_key + splits_.back().num_keys == first &&
                             splits_.back().num_keys < kSplitKeys;
      if (!continues) splits_.push_back({&unit, first, 0, heads});
      Split& split = splits_.back();
      const int64_t num = std::min(end - first, kSplitKeys - split.num_keys);
      split.num_keys += num;
      first += num;
    }
  }

  int64_t q_index(const Unit& unit, int64_t r) const {
    return params_.batch.q_offsets[unit.sequence] + r / unit.num_heads;
  }
  int64_t q_head(const Unit& unit, int64_t r) const { return unit.first_head + r % unit.num_heads; }

  KeyRange row_range(const Unit& unit, int64_t r) const {
    const int64_t kv_len = params_.batch.kv_lens[unit.sequence];
    const int64_t end_row = params_.batch.q_offsets[unit.sequence + 1];
    return visible_keys(params_, kv_len - end_row + q_index(unit, r), kv_len);
  }

  // Outputs [num_rows, head_dim] of one split, then its largest logits [num_rows], scaled, then the
  // sums [num_rows] of exp(logit - largest) that the outputs have yet to be divided by.
  float* partial(const Split& split) const {
    return partials_ + split.first_partial * partial_size_;
  }

  void run_split(const Split& split) const {
    const Unit& unit = *split.unit;
    const std::byte *q[kMaxDecodeRows], *k[kSplitKeys], *v[kSplitKeys];
    int32_t row_begin[kMaxDecodeRows], row_end[kMaxDecodeRows];
    const bool holds_codes = params_.kv.k.dtype == DType::kF8E4M3;
    const int64_t row_bytes = params_.head_dim() * dtype_bytes(params_.q.dtype);
    const Scratch numbers(holds_codes ? 2 * split.num_keys * row_bytes : 0);
    if (holds_codes) {
      std::byte* const values = numbers.data() + split.num_keys * row_bytes;
      read_f8_rows(params_.kv, unit.sequence, unit.kv_head, split.first_key, split.num_keys,
                   params_.q.dtype, numbers.data(), values);
      for (int64_t i = 0; i < split.num_keys; ++i) {
        k[i] = numbers.data() + i * row_bytes;
        v[i] = values + i * row_bytes;
      }
    } else {
      list_key_rows(params_.kv, params_.kv.k, unit.sequence, unit.kv_head, split.first_key,
                    split.num_keys, k);
      list_key_rows(params_.kv, params_.kv.v, unit.sequence, unit.kv_head, split.first_key,
                    split.num_keys, v);
    }
    DecodeJob job;
    for (int64_t r = 0; r < unit.num_rows; ++r) {
      if (!split.has_head(r % unit.num_heads)) continue;
      const KeyRange range = row_range(unit, r);
      const auto within = [&](int64_t key) {
        return static_cast<int32_t>(std::clamp<int64_t>(key - split.first_key, 0, split.num_keys));
      };
      q[job.num_rows] = q_row(params_.q, q_index(unit, r), q_head(unit, r));
      row_begin[job.num_rows] = within(range.begin);
      row_end[job.num_rows] = within(range.end);
      ++job.num_rows;
    }
    job.head_dim = params_.head_dim();
    job.is_bf16 = params_.q.dtype == DType::kBF16;
    job.softmax_scale = params_.scale();
    job.q = q;
    job.num_keys = static_cast<int32_t>(split.num_keys);
    job.k = k;
    job.v = v;
    job.begin = row_begin;
    job.end = row_end;
    job.out = partial(split);
    job.max = job.out + job.num_rows * params_.head_dim();
    job.sum = job.max + job.num_rows;
    kernel_.decode(job);
    for (int32_t r = 0; r < job.num_rows; ++r) job.max[r] *= job.softmax_scale;
  }

  bool can_multiply_codes() const {
    const KvView& kv = params_.kv;
    return kernel_.decode_codes != nullptr && kv.k.dtype == DType::kF8E4M3 &&
           params_.q.dtype == DType::kBF16 && kv.page_size % kGroupKeys == 0;
  }

  CodeGroup group_at(const Unit& unit, int64_t first_key) const {
    const KvView& kv = params_.kv;
    const int64_t page =
        kv.page_table[unit.sequence * kv.page_table_stride + first_key / kv.page_size];
    const int64_t kv_len = params_.batch.kv_lens[unit.sequence];
    CodeGroup group;
    group.num_keys = static_cast<int32_t>(std::min(kGroupKeys, kv_len - first_key));
    group.k = key_row(kv, kv.k, unit.sequence, unit.kv_head, first_key);
    group.v = element_address(
        kv.v, page * kv.v.stride[0] + unit.kv_head * kv.v.stride[1] + first_key % kv.page_size);
    group.k_stride = kv.k.stride[2];
    group.v_stride = kv.v.stride[2];
    group.k_scale = f8_scale(kv.k_scale, page, unit.kv_head);
    group.v_scale = f8_scale(kv.v_scale, page, unit.kv_head);
    return group;
  }

  // run_split() by decode_codes(). False where a value is NaN.
  bool multiply_codes(const Split& split, std::byte* scratch) const {
    const Unit& unit = *split.unit;
    const int64_t first_key = split.first_key / kGroupKeys * kGroupKeys;
    CodeGroup codes[kSplitKeys / kGroupKeys + 1];
    KeyGroup groups[kSplitKeys / kGroupKeys + 1];
    TilePass pass;
    pass.codes = codes;
    pass.groups = groups;
    for (int64_t key = first_key; key < split.first_key + split.num_keys; key += kGroupKeys) {
      codes[pass.num_groups] = group_at(unit, key);
      groups[pass.num_groups] = {static_cast<int32_t>(pass.num_groups), ~0u};
      ++pass.num_groups;
    }
    const std::byte* q[kMaxDecodeRows];
    std::byte* out[kMaxDecodeRows];
    float* lse[kMaxDecodeRows];
    int32_t row_begin[kMaxDecodeRows], row_end[kMaxDecodeRows];
    float* const outputs = partial(split);
    float* const largest = outputs + split.num_rows() * params_.head_dim();
    TileJob job;
    for (int64_t r = 0; r < unit.num_rows; ++r) {
      if (!split.has_head(r % unit.num_heads)) continue;
      const KeyRange range = row_range(unit, r);
      const auto within = [&](int64_t key) {
        return static_cast<int32_t>(
            std::clamp(key, split.first_key, split.first_key + split.num_keys) - first_key);
      };
      q[job.num_rows] = q_row(params_.q, q_index(unit, r), q_head(unit, r));
      row_begin[job.num_rows] = within(range.begin);
      row_end[job.num_rows] = within(range.end);
      out[job.num_rows] = reinterpret_cast<std::byte*>(outputs + job.num_rows * params_.head_dim());
      lse[job.num_rows] = largest + job.num_rows;
      ++job.num_rows;
    }
    pass.begin = row_begin;
    pass.end = row_end;
    job.head_dim = params_.head_dim();
    job.is_bf16 = true;
    job.softmax_scale = params_.scale();
    job.q = q;
    job.passes = &pass;
    job.num_passes = 1;
    job.out = out;
    job.out_is_f32 = true;
    job.lse = lse;
    if (!kernel_.decode_codes(job, scratch)) return false;
    // Outputs are divided already, and an lse is a largest logit with a sum of 1.
    for (int32_t r = 0; r < job.num_rows; ++r) {
      largest[job.num_rows + r] = largest[r] == kMinusInfinity ? 0.0f : 1.0f;
    }
    return true;
  }

  void join_splits(const Unit& unit) const {
    for (int64_t r = 0; r < unit.num_rows; ++r) join_splits(unit, r);
  }

  // Of one row, by their maxima and sums.
  void join_splits(const Unit& unit, int64_t r) const {
    const int64_t head_dim = params_.head_dim();
    const auto for_each_split = [&](auto&& body) {
      for (size_t i = unit.first_split; i < unit.end_split; ++i) {
        const Split& split = splits_[i];
        if (!split.has_head(r % unit.num_heads)) continue;
        const float* const values = partial(split);
        const int64_t row = split.index_of(r), num_rows = split.num_rows();
        const float* const max = values + num_rows * head_dim;
        body(values + row * head_dim, max[row], max[num_rows + row]);
      }
    };
    const float sink =
        params_.sinks.empty() ? kMinusInfinity : params_.sinks.as<const float>()[q_head(unit, r)];
    float max = sink;
    for_each_split([&](const float*, float split_max, float) { max = std::max(max, split_max); });
    std::vector<float> out(static_cast<size_t>(head_dim));
    float sum = sink == kMinusInfinity ? 0.0f : std::exp(sink - max);
    for_each_split([&](const float* values, float split_max, float split_sum) {
      if (split_sum == 0) return;  // it sees nothing here
      const float weight = split_max == max ? 1.0f : std::exp(split_max - max);
      sum += weight * split_sum;
      for (int64_t d = 0; d < head_dim; ++d) out[static_cast<size_t>(d)] += weight * values[d];
    });
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
  std::deque<Unit> units_;
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
