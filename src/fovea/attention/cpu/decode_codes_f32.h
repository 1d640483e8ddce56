// Decode of codes, f8e4m3 or i8, in f32: widened on the way into a register, from their pages.
// Included only by the files that compile for one instruction set each.
#pragma once

#include <cstdint>
#include <cstring>

#include "fovea/attention/cpu/decode_split.h"
#include "fovea/attention/cpu/simd.h"
#include "fovea/attention/cpu/tile_kernel.h"

namespace fovea::cpu {
namespace {

template <class Simd, bool kIsI8>
class DecodeCodesF32 {
  using Vec = typename Simd::Vec;
  static constexpr int kLanes = Simd::kLanes;
  static constexpr int64_t kMaxHeadDim = 256;
  static constexpr int32_t kUnitGroups = kUnitKeys / static_cast<int32_t>(kGroupKeys);
  static constexpr int kStep = 4;                        // keys, or channels, taken together
  static constexpr int kMaxRows = kLanes >= 16 ? 4 : 2;  // query rows that meet them together
  static constexpr float kUnit = kIsI8 ? 1.0f : Simd::kF8Unit;

 public:
  explicit DecodeCodesF32(const DecodeJob& job) : job_(job) {}

  void weigh() {
    for (int r = 0; r < job_.num_rows; ++r) {
      for (int64_t d = 0; d < job_.head_dim; d += kLanes) {
        Simd::store(operands_[r] + d, load_query(job_.q[r], d) * kUnit);
      }
    }
    for (int32_t t = 0; t < job_.num_keys; t += kStep) {
      for_each_few_rows([&]<int kNumRows>(int r) { add_logits<kNumRows>(r, t); });
    }
    for (int r = 0; r < job_.num_rows; ++r) weigh_logits<Simd>(job_, r);
  }

  void add_values() {
    for (int32_t u = 0; u * kUnitKeys < job_.num_keys; ++u) {
      if ((job_.units >> u & 1u) == 0) continue;
      for (int32_t i = 0; i < kUnitGroups; ++i) groups_[num_groups_++] = u * kUnitGroups + i;
    }
    for (int i = 0; i < num_groups_; ++i) {
      for (int r = 0; r < job_.num_rows; ++r) load_weights(r, i);
    }
    for (int64_t d = 0; d < job_.head_dim; d += kStep) {
      for_each_few_rows([&]<int kNumRows>(int r) { add_channels<kNumRows>(r, d); });
    }
  }

 private:
  template <class Work>
  void for_each_few_rows(const Work& work) const {
    for (int r = 0; r < job_.num_rows; r += kMaxRows) {
      const int left = job_.num_rows - r;
      with_up_to_4(left < kMaxRows ? left : kMaxRows,
                   [&]<int kNumRows>() { work.template operator()<kNumRows>(r); });
    }
  }

  static Vec load_codes(const std::byte* codes) {
    if constexpr (kIsI8) {
      return Simd::load_i8(codes);
    } else {
      return Simd::load_f8(codes);
    }
  }

  Vec load_query(const std::byte* row, int64_t d) const {
    return job_.is_bf16 ? Simd::load_bf16(reinterpret_cast<const uint16_t*>(row) + d)
                        : Simd::load(reinterpret_cast<const float*>(row) + d);
  }

  // q.k of kStep keys, which lie in one group.
  template <int kNumRows>
  void add_logits(int first_row, int32_t first_key) {
    const CodeGroup& group = job_.codes[first_key / kGroupKeys];
    const std::byte* const k = group.k + first_key % kGroupKeys * group.k_stride;
    if (first_row == 0) {
      for (int i = 0; i < kStep; ++i) __builtin_prefetch(k + (2 * kGroupKeys + i) * group.k_stride);
    }
    Vec sum[kNumRows][kStep] = {};
    for (int64_t d = 0; d < job_.head_dim; d += kLanes) {
      Vec key[kStep];
      for (int i = 0; i < kStep; ++i) key[i] = load_codes(k + i * group.k_stride + d);
      for (int r = 0; r < kNumRows; ++r) {
        const Vec q = Simd::load(operands_[first_row + r] + d);
        for (int i = 0; i < kStep; ++i) sum[r][i] = Simd::multiply_add(q, key[i], sum[r][i]);
      }
    }
    for (int r = 0; r < kNumRows; ++r) {
      Simd::store_sums(job_.weights + (first_row + r) * kSplitKeys + first_key, sum[r]);
    }
  }

  // Weights of the i-th group that is read, times the scale of its values, in the order of
  // f8_value_slot(): of eight pairs of keys 0, 4, 1, 5, 2, 6, 3, 7.
  void load_weights(int r, int i) {
    const float* from = job_.weights + r * kSplitKeys + groups_[i] * kGroupKeys;
    float* const to = operands_[r] + i * kGroupKeys;
    for (int64_t t = 0; t < kGroupKeys; t += 16, from += 16) {
      for (int64_t pair = 0; pair < 8; ++pair) {
        std::memcpy(to + t + 2 * pair, from + 2 * (pair % 2 * 4 + pair / 2), 2 * sizeof(float));
      }
    }
    const Vec scale = Simd::broadcast(job_.codes[groups_[i]].v_scale * kUnit);
    for (int64_t t = 0; t < kGroupKeys; t += kLanes)
      Simd::store(to + t, Simd::load(to + t) * scale);
  }

  // Channels [d, d + kStep) of kNumRows rows.
  template <int kNumRows>
  void add_channels(int first_row, int64_t d) {
    Vec sum[kNumRows][kStep] = {};
    for (int i = 0; i < num_groups_; ++i) {
      const CodeGroup& group = job_.codes[groups_[i]];
      const std::byte* const v = group.v + d * group.v_stride;
      if (first_row == 0) {
        for (int c = 0; c < kStep; ++c) __builtin_prefetch(v + (2 * kStep + c) * group.v_stride);
      }
      for (int64_t t = 0; t < kGroupKeys; t += kLanes) {
        Vec value[kStep];
        for (int c = 0; c < kStep; ++c) value[c] = load_codes(v + c * group.v_stride + t);
        for (int r = 0; r < kNumRows; ++r) {
          const Vec weight = Simd::load(operands_[first_row + r] + i * kGroupKeys + t);
          for (int c = 0; c < kStep; ++c) {
            sum[r][c] = Simd::multiply_add(weight, value[c], sum[r][c]);
          }
        }
      }
    }
    for (int r = 0; r < kNumRows; ++r) {
      Simd::store_sums(job_.out + (first_row + r) * job_.head_dim + d, sum[r]);
    }
  }

  const DecodeJob& job_;
  int32_t groups_[kSplitKeys / kGroupKeys];  // whose values are read
  int num_groups_ = 0;
  alignas(64) float operands_[kMaxDecodeRows][kSplitKeys];  // queries, then weights
  static_assert(kMaxHeadDim <= kSplitKeys);
};

/// `kernel` with decode of codes.
template <class Simd>
TileKernel with_codes_in_f32(TileKernel kernel) {
  kernel.code_weights = [](const DecodeJob& job) {
    job.codes_are_i8 ? DecodeCodesF32<Simd, true>(job).weigh()
                     : DecodeCodesF32<Simd, false>(job).weigh();
  };
  kernel.code_values = [](const DecodeJob& job) {
    job.codes_are_i8 ? DecodeCodesF32<Simd, true>(job).add_values()
                     : DecodeCodesF32<Simd, false>(job).add_values();
  };
  return kernel;
}

}  // namespace
}  // namespace fovea::cpu
