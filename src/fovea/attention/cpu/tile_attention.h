// Attention of one tile: the online softmax that all instruction sets share.
//
// Everything is transposed: logits are S^T [keys, rows], the output is O^T [head_dim, rows]. Rows
// lie along the vector, so maxima, sums and rescaling are vertical operations, and the weights P^T
// come out in the layout that the second product wants.
//
// Included only by the files that compile for one instruction set each, hence the unnamed
// namespace: no function of one set may be merged with its twin of another.
//
// An Isa brings:
//   Simd            vectors of f32: see GenericSimd
//   kRows           rows that are worked on together; a tile is kSubtiles times as many
//   kSubtiles       meet each batch of keys one after the other, while the batch is in the cache
//   kPack           keys (or channels) in one 32-bit element: 1 of f32, 2 of bf16
//   kPendingGroups  groups in a batch: their weights are gathered before they meet their values
//   kExp2Degree     of the polynomial for exp2
//   Layout          how K and V are packed: see F32Layout
//   scores(keys, q, head_dim, s)            S^T = K Q^T of one group
//   accumulate(values, num, p, head_dim, o) O^T += V^T P^T of `num` groups
//   pack_weights(a, b)                      one element from a (even key) and b (odd key); kPack 2
//   Session         an object that lives as long as the tile: sets up and restores the machine
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include "fovea/attention/cpu/decode_split.h"
#include "fovea/attention/cpu/simd.h"
#include "fovea/attention/cpu/tile_kernel.h"

namespace fovea::cpu {
namespace {

// Weights may grow to 2^8 before O and the sums are rescaled: f32 and bf16 do not notice, and after
// the first few keys of a row rescaling almost never happens.
constexpr float kSlackLog2 = 8.0f;

// Above this the rounding of a shift, 2^-24 of it, would itself overflow exp2.
constexpr float kMaxFusedShift = 0x1p26f;

template <int64_t kAlign>
constexpr int64_t round_up(int64_t value) {
  return (value + kAlign - 1) / kAlign * kAlign;
}

inline uint16_t f32_to_bf16(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const uint32_t quiet_nan = (bits >> 16) | 0x40u;
  return static_cast<uint16_t>((bits & 0x7fffffffu) > 0x7f800000u ? quiet_nan : rounded);
}

template <class Isa>
class TileAttention {
  using Simd = typename Isa::Simd;
  using Vec = typename Simd::Vec;
  static constexpr int kRows = Isa::kRows;
  static constexpr int kLanes = Simd::kLanes;
  static constexpr int kVecs = kRows / kLanes;
  static constexpr int kKeys = static_cast<int>(kGroupKeys);
  static constexpr int kWeightRows = kKeys / Isa::kPack;  // elements of one group and row

 public:
  static int64_t scratch_bytes(int64_t head_dim) {
    const Offsets offsets(head_dim);
    return (offsets.state + Isa::kSubtiles * offsets.state_size) *
           static_cast<int64_t>(sizeof(float));
  }

  TileAttention(const TileJob& job, std::byte* scratch)
      : job_(job),
        offsets_(job.head_dim),
        scale_log2_(job.softmax_scale * kLog2E),
        scratch_(reinterpret_cast<float*>(scratch)) {
    s_ = scratch_;
    p_ = scratch_ + offsets_.p;
    rows_ = scratch_ + offsets_.rows;
  }

  void run() {
    const int num_subtiles = (job_.num_rows + kRows - 1) / kRows;
    for (int i = 0; i < num_subtiles; ++i) {
      select_subtile(i);
      start_subtile();
    }
    for (const TilePass& pass : job_.passes) {
      for (size_t first = 0; first < pass.groups.size(); first += Isa::kPendingGroups) {
        const size_t num = std::min<size_t>(Isa::kPendingGroups, pass.groups.size() - first);
        for (int i = 0; i < num_subtiles; ++i) {
          select_subtile(i);
          walk(pass, pass.groups.subspan(first, num));
        }
      }
    }
    for (int i = 0; i < num_subtiles; ++i) {
      select_subtile(i);
      store_outputs();
    }
  }

 private:
  // Where each array starts in the scratch, in floats. Logits, weights and rows in passing are
  // shared by the subtiles; queries, outputs, maxima, shifts and sums are each subtile's own.
  struct Offsets {
    explicit Offsets(int64_t head_dim) {
      const int64_t channels = Isa::Layout::padded_head_dim(head_dim);
      p = kKeys * kRows;
      rows = p + Isa::kPendingGroups * kWeightRows * kRows;
      state = rows + channels * kRows;
      o = channels / Isa::kPack * kRows;
      max = o + head_dim * kRows;
      state_size = max + 3 * kRows;
    }
    int64_t p, rows, state;      // from the start of the scratch
    int64_t o, max, state_size;  // from the start of a subtile's state
  };

  void select_subtile(int i) {
    first_row_ = i * kRows;
    num_rows_ = std::min(kRows, job_.num_rows - first_row_);
    q_ = scratch_ + offsets_.state + i * offsets_.state_size;
    o_ = q_ + offsets_.o;
    max_ = q_ + offsets_.max;
    shift_ = max_ + kRows;
    sum_ = shift_ + kRows;
  }

  // Rows of q, converted and zero-padded, then transposed to Q^T [elements of head_dim, rows].
  void start_subtile() {
    const int64_t channels = Isa::Layout::padded_head_dim(job_.head_dim);
    const int64_t row_elements = channels / Isa::kPack;
    std::memset(rows_, 0, sizeof(float) * static_cast<size_t>(row_elements * kRows));
    for (int r = 0; r < num_rows_; ++r) {
      Isa::Layout::copy_row(job_.q[first_row_ + r], job_.is_bf16, job_.head_dim,
                            rows_ + r * row_elements);
    }
    transpose_elements(rows_, row_elements, q_, kRows, kRows, row_elements);
    std::memset(o_, 0, sizeof(float) * static_cast<size_t>(job_.head_dim * kRows));
    for (int r = 0; r < kRows; ++r) {
      max_[r] = kMinusInfinity;
      shift_[r] = 0;
      sum_[r] = 0;
    }
  }

  void walk(const TilePass& pass, std::span<const KeyGroup> groups) {
    const int64_t key_bytes = Isa::Layout::key_group_bytes(job_.head_dim);
    const int64_t value_bytes = Isa::Layout::value_group_bytes(job_.head_dim);
    const int last_row = first_row_ + num_rows_ - 1;
    for (const KeyGroup& group : groups) {
      const int64_t first_key = group.index * kGroupKeys;
      const int64_t end_key = first_key + kGroupKeys;
      if (first_key >= pass.end[last_row] || end_key <= pass.begin[first_row_]) continue;
      Isa::scores(pass.kv.keys + group.index * key_bytes, q_, job_.head_dim, s_);
      if (pass.logit_bias != 0) add_bias(pass.logit_bias);
      if (end_key > pass.end[first_row_] || first_key < pass.begin[last_row]) {
        mask_rows(pass, first_key);
      }
      if (group.keys != ~0u) mask_keys(group.keys);
      update_max();
      float* p = p_ + num_pending_ * kWeightRows * kRows;
      if (is_huge_) {
        add_weights<true>(p);
      } else {
        add_weights<false>(p);
      }
      pending_[num_pending_++] = pass.kv.values + group.index * value_bytes;
    }
    flush();
  }

  void add_bias(float bias) {
    for (int i = 0; i < kKeys * kRows; ++i) s_[i] += bias;
  }

  // Rows past num_rows are of zeros and read as the last row does; nobody looks at them.
  void mask_rows(const TilePass& pass, int64_t first_key) {
    int32_t begin[kRows], end[kRows];
    for (int r = 0; r < kRows; ++r) {
      const int row = first_row_ + (r < num_rows_ ? r : num_rows_ - 1);
      begin[r] = pass.begin[row] - static_cast<int32_t>(first_key);
      end[r] = pass.end[row] - static_cast<int32_t>(first_key);
    }
    for (int t = 0; t < kKeys; ++t) {
      float* s = s_ + t * kRows;
      for (int r = 0; r < kRows; ++r) {
        s[r] = (t >= begin[r]) & (t < end[r]) ? s[r] : kMinusInfinity;
      }
    }
  }

  void mask_keys(uint32_t keys) {
    for (int t = 0; t < kKeys; ++t) {
      if ((keys >> t & 1u) != 0) continue;
      for (int r = 0; r < kRows; ++r) s_[t * kRows + r] = kMinusInfinity;
    }
  }

  // Raises the rows' maxima where this group's logits exceed them by more than the slack.
  void update_max() {
    const float slack = kSlackLog2 / scale_log2_;
    bool must_rescale = false;
    Vec group_max[kVecs];
    for (int v = 0; v < kVecs; ++v) {
      const float* s = s_ + v * kLanes;
      Vec a = Simd::load(s), b = Simd::load(s + kRows);
      Vec c = Simd::load(s + 2 * kRows), d = Simd::load(s + 3 * kRows);
      for (int t = 4; t < kKeys; t += 4) {
        a = Simd::max(a, Simd::load(s + t * kRows));
        b = Simd::max(b, Simd::load(s + (t + 1) * kRows));
        c = Simd::max(c, Simd::load(s + (t + 2) * kRows));
        d = Simd::max(d, Simd::load(s + (t + 3) * kRows));
      }
      group_max[v] = Simd::max(Simd::max(a, b), Simd::max(c, d));
      const Vec limit = Simd::load(max_ + v * kLanes) + slack;
      must_rescale |= Simd::any_greater(group_max[v], limit);
    }
    if (!must_rescale) return;
    flush();  // pending weights were taken against the old maxima
    float factor[kRows];
    for (int v = 0; v < kVecs; ++v) {
      for (int i = 0; i < kLanes; ++i) {
        const int r = v * kLanes + i;
        const float old_max = max_[r];
        const float new_max = group_max[v][i] > old_max ? group_max[v][i] : old_max;
        const float old_shift = shift_[r];
        const float new_shift = new_max == kMinusInfinity ? 0.0f : new_max * scale_log2_;
        factor[r] = old_max == new_max          ? 1.0f
                    : old_max == kMinusInfinity ? 0.0f
                    : is_huge_                  ? std::exp2((old_max - new_max) * scale_log2_)
                                                : std::exp2(old_shift - new_shift);
        max_[r] = new_max;
        sum_[r] *= factor[r];
        // exp2(-inf - 0) is 0 for rows that have seen nothing yet; exp2(-inf - -inf) would be NaN.
        shift_[r] = new_max == kMinusInfinity ? 0.0f : new_max * scale_log2_;
        is_huge_ |= std::abs(shift_[r]) > kMaxFusedShift;
      }
    }
    for (int64_t d = 0; d < job_.head_dim; ++d) {
      for (int r = 0; r < kRows; ++r) o_[d * kRows + r] *= factor[r];
    }
  }

  // P^T = exp2(S^T * scale - shift), in the layout of the second product, and its sums. The shift
  // is the same number for all keys of a row, so its rounding cancels; of huge logits it would not
  // stay small, and the difference comes first.
  template <bool kIsHuge>
  void add_weights(float* p) {
    const Vec scale = Simd::broadcast(scale_log2_);
    for (int v = 0; v < kVecs; ++v) {
      const Vec shift = Simd::load(shift_ + v * kLanes);
      const Vec max = Simd::zero_where_minus_infinity(Simd::load(max_ + v * kLanes));
      Vec sum_a = Simd::load(sum_ + v * kLanes), sum_b = Simd::broadcast(0);
      const float* s = s_ + v * kLanes;
      const auto weight = [&](int t) {
        const Vec logit = Simd::load(s + t * kRows);
        return Simd::template exp2<Isa::kExp2Degree>(
            kIsHuge ? (logit - max) * scale : Simd::multiply_subtract(logit, scale, shift));
      };
      for (int t = 0; t < kKeys; t += 2) {
        const Vec a = weight(t), b = weight(t + 1);
        sum_a += a;
        sum_b += b;
        if constexpr (Isa::kPack == 1) {
          Simd::store(p + t * kRows + v * kLanes, a);
          Simd::store(p + (t + 1) * kRows + v * kLanes, b);
        } else {
          Isa::pack_weights(p + t / 2 * kRows + v * kLanes, a, b);
        }
      }
      Simd::store(sum_ + v * kLanes, sum_a + sum_b);
    }
  }

  void flush() {
    if (num_pending_ > 0) Isa::accumulate(pending_, num_pending_, p_, job_.head_dim, o_);
    num_pending_ = 0;
  }

  void store_outputs() {
    const int64_t head_dim = job_.head_dim;
    transpose_elements(o_, kRows, rows_, head_dim, head_dim, kRows);
    for (int r = 0; r < num_rows_; ++r) {
      const int row = first_row_ + r;
      float max = max_[r] == kMinusInfinity ? kMinusInfinity
                  : is_huge_                ? max_[r] * job_.softmax_scale
                                            : shift_[r] * (1 / kLog2E);
      float sum = sum_[r];
      float factor = 1;  // of what has been summed, against the sink
      if (job_.sinks != nullptr) {
        const float sink = job_.sinks[row];
        const float new_max = max > sink ? max : sink;
        factor = max == new_max ? 1.0f : std::exp(max - new_max);
        if (new_max != kMinusInfinity) sum = sum * factor + std::exp(sink - new_max);
        max = new_max;
      }
      const bool is_empty = sum == 0;
      const float inverse = is_empty ? 0.0f : factor / sum;
      if (job_.lse[row] != nullptr) {
        *job_.lse[row] = is_empty ? kMinusInfinity : max + std::log(sum);
      }
      const float* o = rows_ + r * head_dim;
      if (job_.is_bf16) {
        auto* out = reinterpret_cast<uint16_t*>(job_.out[row]);
        for (int64_t d = 0; d < head_dim; ++d) out[d] = f32_to_bf16(o[d] * inverse);
      } else {
        auto* out = reinterpret_cast<float*>(job_.out[row]);
        for (int64_t d = 0; d < head_dim; ++d) out[d] = o[d] * inverse;
      }
    }
  }

  const TileJob& job_;
  const Offsets offsets_;
  const float scale_log2_;
  float* const scratch_;
  float *s_, *p_, *rows_;
  int num_pending_ = 0;
  const std::byte* pending_[Isa::kPendingGroups] = {};
  bool is_huge_ = false;
  // The subtile at work.
  int first_row_ = 0, num_rows_ = 0;
  float *q_ = nullptr, *o_ = nullptr, *max_ = nullptr, *shift_ = nullptr, *sum_ = nullptr;
};

/// The table of one instruction set.
template <class Isa>
const TileKernel& make_tile_kernel() {
  static const TileKernel kernel = {
      Isa::kRows * Isa::kSubtiles,
      [](int64_t head_dim, bool is_bf16) {
        return head_dim % 16 == 0 && head_dim <= 256 && (is_bf16 || Isa::kPack == 1);
      },
      &Isa::Layout::key_group_bytes,
      &Isa::Layout::value_group_bytes,
      &TileAttention<Isa>::scratch_bytes,
      &Isa::pack,
      [](const TileJob& job, std::byte* scratch) {
        [[maybe_unused]] const typename Isa::Session session;
        TileAttention<Isa>(job, scratch).run();
      },
      [](const DecodeJob& job) { DecodeSplit<Isa>(job).run(); },
  };
  return kernel;
}

}  // namespace
}  // namespace fovea::cpu
