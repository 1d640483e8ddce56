#include "fovea/attention/cpu/decode.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <deque>
#include <limits>
#include <optional>
#include <span>
#include <vector>

#include "fovea/attention/code_pages.h"
#include "fovea/attention/cpu/rows.h"
#include "fovea/attention/cpu/scratch.h"
#include "fovea/attention/cpu/value_skips.h"
#include "fovea/base/parallel.h"
#include "fovea/tensor/bfloat16.h"

namespace fovea::cpu {
namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

// Under this there are too few units of values to leave any out.
constexpr int64_t kLeastSkippedKeys = 1024;

// The heads of one sequence that share a KV head. Row r is query token r / num_heads of head
// first_head + r % num_heads.
struct Unit {
  int64_t sequence, kv_head;
  int64_t first_head, num_heads, num_rows;
  size_t first_split = 0, end_split = 0;
  bool may_skip_values = false;
  std::atomic<size_t> splits_left = 0;  // of the present round
};

// Consecutive keys of a unit between two multiples of kSplitKeys and the heads that read them: all
// of them without a selection. A block that is in the lists of several heads passes through the
// cache once.
struct Split {
  Unit* unit;
  int64_t first_key, num_keys;
  uint32_t heads;             // bit i: head first_head + i
  int64_t first_partial = 0;  // in rows, where its partial results start
  int64_t first_weight = 0;   // in rows of weights, where the unit may skip values
  uint32_t values = ~0u;      // bit i: values of its i-th kUnitKeys keys are read

  // The keys that a kernel is shown start here: values are skipped kUnitKeys at a time.
  int64_t first_shown() const { return first_key / kUnitKeys * kUnitKeys; }
  int32_t num_shown() const { return static_cast<int32_t>(first_key + num_keys - first_shown()); }
  int32_t num_units() const { return (num_shown() + kUnitKeys - 1) / kUnitKeys; }

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
      : kernel_(kernel),
        params_(params),
        context_(context),
        partial_size_(params.head_dim() + 2 + kSplitUnits) {
    for (int64_t s = 0; s < params.batch.batch_size; ++s) {
      if (!is_decode(params, s)) continue;
      for (int64_t h = 0; h < params.kv.num_kv_heads(); ++h) add_unit(s, h);
    }
  }

  // A row's splits are joined by whoever finishes the last of them, in their own order: another
  // round over the threads would take longer than the work. Where values may be skipped, all
  // weights of the row come first.
  void run() {
    if (units_.empty()) return;
    const Scratch partials(checked_mul(num_partials_, partial_size_, "partial results") *
                           static_cast<int64_t>(sizeof(float)));
    partials_ = reinterpret_cast<float*>(partials.data());
    const int64_t own_weights = num_weights_;
    num_weights_ += resolve_num_threads(context_) * padded_decode_rows(kMaxDecodeRows);
    const Scratch weights(checked_mul(num_weights_, kSplitKeys, "weights") *
                          static_cast<int64_t>(sizeof(float)));
    weights_ = reinterpret_cast<float*>(weights.data());
    for (const Unit& unit : units_) {
      if (unit.splits_left == 0) join_splits(unit);
    }
    bool skips_values = false;
    for (const Unit& unit : units_) skips_values |= unit.may_skip_values;
    const auto num_splits = static_cast<int64_t>(splits_.size());
    parallel_for(context_, num_splits, [&](int64_t i, int32_t thread) {
      Split& split = splits_[static_cast<size_t>(i)];
      Unit& unit = *split.unit;
      if (!unit.may_skip_values) {
        split.first_weight = own_weights + thread * padded_decode_rows(kMaxDecodeRows);
      }
      SplitJob job(*this, split);
      job.weigh();
      if (!unit.may_skip_values) job.add_values();
      if (unit.splits_left.fetch_sub(1) > 1) return;
      if (unit.may_skip_values) {
        choose_values(unit);
      } else {
        join_splits(unit);
      }
    });
    if (!skips_values) return;
    parallel_for(context_, num_splits, [&](int64_t i, int32_t) {
      const Split& split = splits_[static_cast<size_t>(i)];
      Unit& unit = *split.unit;
      if (!unit.may_skip_values) return;
      if (split.values != 0) SplitJob(*this, split).add_values();
      if (unit.splits_left.fetch_sub(1) == 1) join_splits(unit);
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
    unit.may_skip_values = params_.value_share < 1 && end - begin >= kLeastSkippedKeys;
    for (size_t i = unit.first_split; i < unit.end_split; ++i) {
      splits_[i].first_partial = num_partials_;
      num_partials_ += splits_[i].num_rows();
      if (!unit.may_skip_values) continue;
      splits_[i].first_weight = num_weights_;
      num_weights_ += padded_decode_rows(splits_[i].num_rows());
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

  // Keys [first, end), in splits between multiples of kSplitKeys; prolongs the last split where it
  // can.
  void add_keys(Unit& unit, int64_t first, int64_t end, uint32_t heads) {
    while (first < end) {
      const bool continues = splits_.size() > unit.first_split && splits_.back().heads == heads &&
                             splits_.back().first_key + splits_.back().num_keys == first &&
                             first % kSplitKeys != 0;
      if (!continues) splits_.push_back({&unit, first, 0, heads});
      Split& split = splits_.back();
      const int64_t num = std::min(end - first, kSplitKeys - first % kSplitKeys);
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

  // Of one split: outputs [num_rows, head_dim] that are yet to be divided by the sums of weights,
  // largest logits [num_rows], scaled, sums [num_rows] of exp(logit - largest), and the same
  // [num_rows, kSplitUnits] for each unit.
  float* partial(const Split& split) const {
    return partials_ + split.first_partial * partial_size_;
  }
  const float* largest_logits(const Split& split) const {
    return partial(split) + split.num_rows() * params_.head_dim();
  }
  const float* sums(const Split& split) const { return largest_logits(split) + split.num_rows(); }
  const float* unit_sums(const Split& split) const { return sums(split) + split.num_rows(); }

  bool can_multiply_codes() const {
    const KvView& kv = params_.kv;
    return kernel_.code_weights != nullptr && kv.holds_codes() &&
           kv.page_size % (kv.k.dtype == DType::kI8 ? kUnitKeys : kGroupKeys) == 0;
  }

  CodeGroup group_at(const Unit& unit, int64_t first_key) const {
    const KvView& kv = params_.kv;
    const int64_t page =
        kv.page_table[unit.sequence * kv.page_table_stride + first_key / kv.page_size];
    CodeGroup group;
    group.k = key_row(kv, kv.k, unit.sequence, unit.kv_head, first_key);
    group.v = element_address(
        kv.v, page * kv.v.stride[0] + unit.kv_head * kv.v.stride[1] + first_key % kv.page_size);
    group.k_stride = kv.k.stride[2];
    group.v_stride = kv.v.stride[2];
    group.k_scale = code_scale(kv.k_scale, page, unit.kv_head);
    group.v_scale = code_scale(kv.v_scale, page, unit.kv_head);
    return group;
  }

  // One split as the kernel wants it.
  class SplitJob {
   public:
    SplitJob(const Decode& decode, const Split& split) : decode_(decode), split_(split) {
      const AttentionParams& params = decode.params_;
      const Unit& unit = *split.unit;
      for (int64_t r = 0; r < unit.num_rows; ++r) {
        if (!split.has_head(r % unit.num_heads)) continue;
        const KeyRange range = decode.row_range(unit, r);
        const auto within = [&](int64_t key) {
          const int64_t seen = std::clamp(key, split.first_key, split.first_key + split.num_keys);
          return static_cast<int32_t>(seen - split.first_shown());
        };
        q_[job_.num_rows] = q_row(params.q, decode.q_index(unit, r), decode.q_head(unit, r));
        begin_[job_.num_rows] = within(range.begin);
        end_[job_.num_rows] = within(range.end);
        ++job_.num_rows;
      }
      job_.head_dim = params.head_dim();
      job_.is_bf16 = params.q.dtype == DType::kBF16;
      job_.softmax_scale = params.scale();
      job_.q = q_;
      job_.num_keys = split.num_shown();
      job_.begin = begin_;
      job_.end = end_;
      job_.weights = decode.weights_ + split.first_weight * kSplitKeys;
      job_.out = decode.partial(split);
      job_.max = job_.out + job_.num_rows * job_.head_dim;
      job_.sum = job_.max + job_.num_rows;
      job_.unit_sum = job_.sum + job_.num_rows;
      job_.units = split.values;
      if (decode.can_multiply_codes()) list_codes();
    }

    void weigh() {
      if (job_.codes != nullptr) {
        decode_.kernel_.code_weights(job_);
      } else {
        list_rows(decode_.params_.kv.k, k_);
        job_.k = k_;
        decode_.kernel_.decode_weights(job_);
      }
      for (int32_t r = 0; r < job_.num_rows; ++r) job_.max[r] *= job_.softmax_scale;
    }

    void add_values() {
      if (job_.codes != nullptr) {
        decode_.kernel_.code_values(job_);
        float sum = 0;
        for (int64_t i = 0; i < job_.num_rows * job_.head_dim; ++i) sum += job_.out[i];
        if (!std::isnan(sum)) return;
        // Maybe of a value that this row does not see.
      }
      list_rows(decode_.params_.kv.v, v_);
      job_.v = v_;
      decode_.kernel_.decode_values(job_);
    }

   private:
    void list_codes() {
      const Unit& unit = *split_.unit;
      const int64_t first = split_.first_shown(), end = split_.first_key + split_.num_keys;
      int64_t num = 0;
      for (int64_t key = first; key < end; key += kGroupKeys) {
        codes_[num++] = decode_.group_at(unit, key);
      }
      if (num % (kUnitKeys / kGroupKeys) != 0) codes_[num] = codes_[num - 1];
      job_.codes = codes_;
      job_.codes_are_i8 = decode_.params_.kv.k.dtype == DType::kI8;
    }

    // Rows of `view`, which is K or V, in the type of q: where they lie or, out of codes, in
    // numbers_. Keys before the split's own, which nobody sees, read as its first.
    void list_rows(const TensorView& view, const std::byte** rows) {
      const KvView& kv = decode_.params_.kv;
      const Unit& unit = *split_.unit;
      const int64_t num_before = split_.first_key - split_.first_shown();
      if (kv.holds_codes()) {
        const DType dtype = decode_.params_.q.dtype;
        const int64_t row_bytes = job_.head_dim * dtype_bytes(dtype);
        numbers_.emplace(split_.num_keys * row_bytes);
        std::byte* const numbers = numbers_->data();
        const bool is_key = &view == &kv.k;
        read_code_rows(kv, unit.sequence, unit.kv_head, split_.first_key, split_.num_keys, dtype,
                       is_key ? numbers : nullptr, is_key ? nullptr : numbers);
        for (int64_t i = 0; i < split_.num_keys; ++i) {
          rows[num_before + i] = numbers + i * row_bytes;
        }
      } else {
        list_key_rows(kv, view, unit.sequence, unit.kv_head, split_.first_key, split_.num_keys,
                      rows + num_before);
      }
      std::fill_n(rows, num_before, rows[num_before]);
    }

    const Decode& decode_;
    const Split& split_;
    DecodeJob job_;
    const std::byte *q_[kMaxDecodeRows], *k_[kSplitKeys], *v_[kSplitKeys];
    int32_t begin_[kMaxDecodeRows], end_[kMaxDecodeRows];
    CodeGroup codes_[kSplitKeys / kGroupKeys];
    std::optional<Scratch> numbers_;
  };

  // Once all weights of a unit are there: which of its values are read.
  void choose_values(Unit& unit) {
    const std::span<Split> splits =
        std::span(splits_).subspan(unit.first_split, unit.end_split - unit.first_split);
    const auto num_rows = static_cast<size_t>(unit.num_rows);
    std::vector<float> max(num_rows, kMinusInfinity), sum(num_rows, 0.0f);
    const auto for_each_row = [&](const auto& body) {
      for (const Split& split : splits) {
        for (int64_t r = 0; r < unit.num_rows; ++r) {
          if (split.has_head(r % unit.num_heads)) {
            body(split, split.index_of(r), static_cast<size_t>(r));
          }
        }
      }
    };
    // What a split's sums count for in the whole row's.
    const auto factor = [&](const Split& split, int64_t row, size_t r) {
      const float split_max = largest_logits(split)[row];
      return split_max == kMinusInfinity ? 0.0f : std::exp(split_max - max[r]);
    };
    for_each_row([&](const Split& split, int64_t row, size_t r) {
      max[r] = std::max(max[r], largest_logits(split)[row]);
    });
    for_each_row([&](const Split& split, int64_t row, size_t r) {
      sum[r] += factor(split, row, r) * sums(split)[row];
    });
    std::vector<float> shares(splits.size() * kSplitUnits * num_rows, 0.0f);
    for_each_row([&](const Split& split, int64_t row, size_t r) {
      const float scale = sum[r] == 0 ? 0.0f : factor(split, row, r) / sum[r];
      const auto first = static_cast<size_t>(&split - splits.data()) * kSplitUnits;
      for (int32_t i = 0; i < split.num_units(); ++i) {
        shares[(first + static_cast<size_t>(i)) * num_rows + r] =
            scale * unit_sums(split)[row * kSplitUnits + i];
      }
    });
    const std::vector<uint8_t> is_read = units_to_read(shares, unit.num_rows, params_.value_share);
    for (size_t i = 0; i < splits.size(); ++i) {
      splits[i].values = 0;
      for (int32_t u = 0; u < splits[i].num_units(); ++u) {
        splits[i].values |= uint32_t{is_read[i * kSplitUnits + static_cast<size_t>(u)]} << u;
      }
    }
    unit.splits_left = splits.size();
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
        const int64_t row = split.index_of(r);
        body(split, row, largest_logits(split)[row]);
      }
    };
    const float sink =
        params_.sinks.empty() ? kMinusInfinity : params_.sinks.as<const float>()[q_head(unit, r)];
    float max = sink;
    for_each_split([&](const Split&, int64_t, float split_max) { max = std::max(max, split_max); });
    std::vector<float> out(static_cast<size_t>(head_dim));
    float sum = sink == kMinusInfinity ? 0.0f : std::exp(sink - max);
    for_each_split([&](const Split& split, int64_t row, float split_max) {
      const float split_sum = sums(split)[row];
      if (split_sum == 0) return;  // it sees nothing here
      const float weight = split_max == max ? 1.0f : std::exp(split_max - max);
      sum += weight * split_sum;
      if (split.values == 0) return;
      const float* const values = partial(split) + row * head_dim;
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
  const int64_t partial_size_;  // floats of a row: its output, maximum, sum and units' sums
  std::deque<Unit> units_;
  std::vector<Split> splits_;
  int64_t num_partials_ = 0, num_weights_ = 0;  // rows of them
  float *partials_ = nullptr, *weights_ = nullptr;
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
