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

/// Isa brings Simd. Logits of the whole split come first, then one softmax, then the values: K and
/// V stream through once each, four keys at a time.
template <class Isa>
class DecodeSplit {
  using Simd = typename Isa::Simd;
  using Vec = typename Simd::Vec;
  static constexpr int kLanes = Simd::kLanes;
  static constexpr int64_t kMaxHeadDim = 256;
  static constexpr int kStep = 4;  // keys read together

 public:
  explicit DecodeSplit(const DecodeJob& job) : job_(job) {}

  void run() {
    for (int r = 0; r < job_.num_rows; ++r) {
      const float* row = widen(job_.q[r], q_[r]);
      if (row != q_[r]) std::memcpy(q_[r], row, sizeof(float) * static_cast<size_t>(job_.head_dim));
    }
    for (int32_t t = 0; t < job_.num_keys; t += kStep) add_logits(t);
    for (int r = 0; r < job_.num_rows; ++r) softmax(r);
    std::memset(job_.out, 0, sizeof(float) * static_cast<size_t>(job_.num_rows * job_.head_dim));
    int32_t first = 0, end = job_.num_keys;  // what all rows see
    for (int r = 0; r < job_.num_rows; ++r) {
      first = job_.begin[r] > first ? job_.begin[r] : first;
      end = job_.end[r] < end ? job_.end[r] : end;
    }
    int32_t t = 0;
    for (; t < first && t < job_.num_keys; ++t) add_value(t);
    for (; t + kStep <= end; t += kStep) add_values(t);
    for (; t < job_.num_keys; ++t) add_value(t);
  }

 private:
  // The row as f32: itself, or converted into `buffer`.
  const float* widen(const std::byte* row, float* buffer) const {
    if (!job_.is_bf16) return reinterpret_cast<const float*>(row);
    const auto* bits = reinterpret_cast<const uint16_t*>(row);
    for (int64_t d = 0; d < job_.head_dim; ++d) buffer[d] = bf16_to_f32(bits[d]);
    return buffer;
  }

  void add_logits(int32_t first) {
    const float* k[kStep];
    for (int i = 0; i < kStep; ++i) {
      const int32_t t = first + i < job_.num_keys ? first + i : job_.num_keys - 1;
      k[i] = widen(job_.k[t], rows_[i]);
    }
    for (int r = 0; r < job_.num_rows; ++r) {
      Vec sum[kStep];
      for (int i = 0; i < kStep; ++i) sum[i] = Simd::broadcast(0);
      for (int64_t d = 0; d < job_.head_dim; d += kLanes) {
        const Vec q = Simd::load(q_[r] + d);
        for (int i = 0; i < kStep; ++i) {
          sum[i] = Simd::multiply_add(q, Simd::load(k[i] + d), sum[i]);
        }
      }
      Simd::store_sums(weights_[r] + first, sum);
    }
  }

  // Turns the row's logits into weights; keys it does not see get 0.
  void softmax(int r) {
    const int32_t num_padded = (job_.num_keys + kLanes - 1) / kLanes * kLanes;
    float* weights = weights_[r];
    for (int32_t t = 0; t < num_padded; ++t) {
      weights[t] = (t >= job_.begin[r]) & (t < job_.end[r]) ? weights[t] : kMinusInfinity;
    }
    Vec max = Simd::broadcast(kMinusInfinity);
    for (int32_t t = 0; t < num_padded; t += kLanes) max = Simd::max(max, Simd::load(weights + t));
    float row_max = kMinusInfinity;
    for (int i = 0; i < kLanes; ++i) row_max = max[i] > row_max ? max[i] : row_max;
    const Vec shift = Simd::broadcast(row_max == kMinusInfinity ? 0.0f : row_max);
    const Vec scale = Simd::broadcast(job_.softmax_scale * kLog2E);
    Vec sum = Simd::broadcast(0);
    for (int32_t t = 0; t < num_padded; t += kLanes) {
      const Vec weight = Simd::template exp2<5>((Simd::load(weights + t) - shift) * scale);
      sum += weight;
      Simd::store(weights + t, weight);
    }
    job_.max[r] = row_max;
    job_.sum[r] = Simd::sum(sum);
  }

  // Keys that all rows see.
  void add_values(int32_t first) {
    const float* v[kStep];
    for (int i = 0; i < kStep; ++i) v[i] = widen(job_.v[first + i], rows_[i]);
    for (int r = 0; r < job_.num_rows; ++r) {
      Vec weight[kStep];
      for (int i = 0; i < kStep; ++i) weight[i] = Simd::broadcast(weights_[r][first + i]);
      float* out = job_.out + r * job_.head_dim;
      for (int64_t d = 0; d < job_.head_dim; d += kLanes) {
        Vec sum = Simd::load(out + d);
        for (int i = 0; i < kStep; ++i) {
          sum = Simd::multiply_add(weight[i], Simd::load(v[i] + d), sum);
        }
        Simd::store(out + d, sum);
      }
    }
  }

  // A key that only some rows see: a weight of 0 would not hide a NaN.
  void add_value(int32_t t) {
    const float* v = widen(job_.v[t], rows_[0]);
    for (int r = 0; r < job_.num_rows; ++r) {
      if (t < job_.begin[r] || t >= job_.end[r]) continue;
      float* out = job_.out + r * job_.head_dim;
      for (int64_t d = 0; d < job_.head_dim; ++d) out[d] += weights_[r][t] * v[d];
    }
  }

  const DecodeJob& job_;
  alignas(64) float q_[kMaxDecodeRows][kMaxHeadDim];
  alignas(64) float rows_[kStep][kMaxHeadDim];
  alignas(64) float weights_[kMaxDecodeRows][kSplitKeys + kStep];
};

}  // namespace
}  // namespace fovea::cpu
