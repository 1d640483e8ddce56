// A few query rows against one split of the keys. Included only by the files that compile for one
// instruction set each.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "fovea/attention/cpu/simd.h"
#include "fovea/attention/cpu/tile_kernel.h"

namespace fovea::cpu {
namespace {

/// Calls `work` with `number`, from 1 on, as a constant; with 4 for all above.
template <class Work>
inline void with_up_to_4(int64_t number, const Work& work) {
  switch (number) {
    case 1:
      return work.template operator()<1>();
    case 2:
      return work.template operator()<2>();
    case 3:
      return work.template operator()<3>();
    default:
      return work.template operator()<4>();
  }
}

/// Turns row r of job.weights from q.k (of codes: over the scale of their group) into weights, with
/// their maximum and sums. Weights up to a whole unit are zeros.
template <class Simd>
inline void weigh_logits(const DecodeJob& job, int r) {
  using Vec = typename Simd::Vec;
  constexpr int kLanes = Simd::kLanes;
  const int32_t num_padded = (job.num_keys + kUnitKeys - 1) / kUnitKeys * kUnitKeys;
  float* const weights = job.weights + r * kSplitKeys;
  for (int32_t t = 0; t < num_padded; ++t) {
    weights[t] = (t >= job.begin[r]) & (t < job.end[r]) ? weights[t] : kMinusInfinity;
  }
  Vec max = Simd::broadcast(kMinusInfinity);
  for (int32_t t = 0; t < num_padded; t += kLanes) {
    Vec logits = Simd::load(weights + t);
    if (job.codes != nullptr) {
      logits *= job.codes[t / kGroupKeys].k_scale;
      Simd::store(weights + t, logits);
    }
    max = Simd::max(max, logits);
  }
  float row_max = kMinusInfinity;
  for (int i = 0; i < kLanes; ++i) row_max = max[i] > row_max ? max[i] : row_max;
  const Vec shift = Simd::broadcast(row_max == kMinusInfinity ? 0.0f : row_max);
  const Vec scale = Simd::broadcast(job.softmax_scale * kLog2E);
  job.max[r] = row_max;
  job.sum[r] = 0;
  for (int32_t unit = 0; unit * kUnitKeys < num_padded; ++unit) {
    Vec sum = Simd::broadcast(0);
    for (int32_t t = unit * kUnitKeys; t < (unit + 1) * kUnitKeys; t += kLanes) {
      const Vec weight = Simd::template exp2<5>((Simd::load(weights + t) - shift) * scale);
      sum += weight;
      Simd::store(weights + t, weight);
    }
    const float unit_sum = Simd::sum(sum);
    job.unit_sum[r * kSplitUnits + unit] = unit_sum;
    job.sum[r] += unit_sum;
  }
}

/// Isa brings Simd. K and V stream through once each, bf16 widened on the way into a register and
/// shared by up to kMaxRows query rows.
template <class Isa, bool kIsBf16>
class DecodeSplit {
  using Simd = typename Isa::Simd;
  using Vec = typename Simd::Vec;
  static constexpr int kLanes = Simd::kLanes;
  static constexpr int64_t kMaxHeadDim = 256;
  static constexpr int kStep = 4;     // keys whose logits are taken together
  static constexpr int kMaxRows = 4;  // query rows that meet a key together
  static constexpr int kMaxVecs = 4;  // vectors of channels whose sums stay in registers
  static constexpr int kAhead = 16;   // keys to prefetch ahead

 public:
  explicit DecodeSplit(const DecodeJob& job) : job_(job) {}

  void weigh() {
    for (int r = 0; r < job_.num_rows; ++r) {
      for (int64_t d = 0; d < job_.head_dim; d += kLanes) {
        Simd::store(q_[r] + d, load(job_.q[r], d));
      }
    }
    for (int r = 0; r < job_.num_rows; r += kMaxRows) {
      with_up_to_4(job_.num_rows - r, [&]<int kNumRows>() { add_logits<kNumRows>(r); });
    }
    for (int r = 0; r < job_.num_rows; ++r) weigh_logits<Simd>(job_, r);
  }

  /// Run by run of neighbouring units.
  void add_values() {
    std::memset(job_.out, 0, sizeof(float) * static_cast<size_t>(job_.num_rows * job_.head_dim));
    for (int32_t unit = 0; unit < kSplitUnits; ++unit) {
      const int32_t first = unit * kUnitKeys;
      while (unit < kSplitUnits && (job_.units >> unit & 1u) != 0) ++unit;
      const int32_t end = unit * kUnitKeys < job_.num_keys ? unit * kUnitKeys : job_.num_keys;
      if (first < end) add_values(first, end);
    }
  }

 private:
  static Vec load(const std::byte* row, int64_t d) {
    if constexpr (kIsBf16) {
      return Simd::load_bf16(reinterpret_cast<const uint16_t*>(row) + d);
    } else {
      return Simd::load(reinterpret_cast<const float*>(row) + d);
    }
  }

  float* weights(int r) const { return job_.weights + r * kSplitKeys; }

  void prefetch(const std::byte* const* rows, int32_t t) const {
    if (t + kAhead >= job_.num_keys) return;
    const int64_t num_bytes = job_.head_dim * (kIsBf16 ? 2 : 4);
    for (int64_t i = 0; i < num_bytes; i += 64) __builtin_prefetch(rows[t + kAhead] + i);
  }

  // q.k of rows [first_row, first_row + kNumRows) and all keys.
  template <int kNumRows>
  void add_logits(int first_row) {
    for (int32_t first = 0; first < job_.num_keys; first += kStep) {
      const std::byte* k[kStep];
      for (int i = 0; i < kStep; ++i) {
        const int32_t t = first + i < job_.num_keys ? first + i : job_.num_keys - 1;
        k[i] = job_.k[t];
        prefetch(job_.k, t);
      }
      Vec sum[kNumRows][kStep] = {};
      for (int64_t d = 0; d < job_.head_dim; d += kLanes) {
        Vec key[kStep];
        for (int i = 0; i < kStep; ++i) key[i] = load(k[i], d);
        for (int r = 0; r < kNumRows; ++r) {
          const Vec q = Simd::load(q_[first_row + r] + d);
          for (int i = 0; i < kStep; ++i) sum[r][i] = Simd::multiply_add(q, key[i], sum[r][i]);
        }
      }
      for (int r = 0; r < kNumRows; ++r) Simd::store_sums(weights(first_row + r) + first, sum[r]);
    }
  }

  void add_values(int32_t first, int32_t end) {
    int32_t first_common = first, end_common = end;  // what all rows see
    for (int r = 0; r < job_.num_rows; ++r) {
      first_common = job_.begin[r] > first_common ? job_.begin[r] : first_common;
      end_common = job_.end[r] < end_common ? job_.end[r] : end_common;
    }
    if (first_common >= end_common) first_common = end_common = first;
    for (int32_t t = first; t < first_common; ++t) add_value(t);
    for (int r = 0; r < job_.num_rows; r += kMaxRows) {
      with_up_to_4(job_.num_rows - r,
                   [&]<int kNumRows>() { add_values<kNumRows>(r, first_common, end_common); });
    }
    for (int32_t t = end_common; t < end; ++t) add_value(t);
  }

  // Keys [first, end), which all rows see.
  template <int kNumRows>
  void add_values(int first_row, int32_t first, int32_t end) {
    int64_t d = 0;
    for (; d + kMaxVecs * kLanes <= job_.head_dim; d += kMaxVecs * kLanes) {
      add_channels<kNumRows, kMaxVecs>(first_row, d, first, end);
    }
    for (; d < job_.head_dim; d += kLanes) add_channels<kNumRows, 1>(first_row, d, first, end);
  }

  template <int kNumRows, int kNumVecs>
  void add_channels(int first_row, int64_t d, int32_t first, int32_t end) {
    float* const out = job_.out + first_row * job_.head_dim + d;
    Vec sum[kNumRows][kNumVecs];
    for (int r = 0; r < kNumRows; ++r) {
      for (int v = 0; v < kNumVecs; ++v) {
        sum[r][v] = Simd::load(out + r * job_.head_dim + v * kLanes);
      }
    }
    for (int32_t t = first; t < end; ++t) {
      if (d == 0) prefetch(job_.v, t);
      Vec value[kNumVecs];
      for (int v = 0; v < kNumVecs; ++v) value[v] = load(job_.v[t], d + v * kLanes);
      for (int r = 0; r < kNumRows; ++r) {
        const Vec weight = Simd::broadcast(weights(first_row + r)[t]);
        for (int v = 0; v < kNumVecs; ++v) {
          sum[r][v] = Simd::multiply_add(weight, value[v], sum[r][v]);
        }
      }
    }
    for (int r = 0; r < kNumRows; ++r) {
      for (int v = 0; v < kNumVecs; ++v) {
        Simd::store(out + r * job_.head_dim + v * kLanes, sum[r][v]);
      }
    }
  }

  // A key that only some rows see: a weight of 0 would not hide a NaN.
  void add_value(int32_t t) {
    for (int r = 0; r < job_.num_rows; ++r) {
      if (t < job_.begin[r] || t >= job_.end[r]) continue;
      const Vec weight = Simd::broadcast(weights(r)[t]);
      float* const out = job_.out + r * job_.head_dim;
      for (int64_t d = 0; d < job_.head_dim; d += kLanes) {
        Simd::store(out + d, Simd::multiply_add(weight, load(job_.v[t], d), Simd::load(out + d)));
      }
    }
  }

  const DecodeJob& job_;
  alignas(64) float q_[kMaxDecodeRows][kMaxHeadDim];
};

}  // namespace
}  // namespace fovea::cpu
