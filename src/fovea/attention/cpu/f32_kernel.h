// Tile kernels that compute in f32; K and V of bf16 are widened once, when they are packed.
// Included only by the files that compile for one instruction set each.
#pragma once

#include "fovea/attention/cpu/simd.h"
#include "fovea/attention/cpu/tile_attention.h"

namespace fovea::cpu {
namespace {

/// K and V are [key, head_dim] of f32.
struct F32Layout {
  static int64_t padded_head_dim(int64_t head_dim) { return head_dim; }
  static int64_t key_group_bytes(int64_t head_dim) { return kGroupKeys * head_dim * 4; }
  static int64_t value_group_bytes(int64_t head_dim) { return kGroupKeys * head_dim * 4; }

  static void copy_row(const std::byte* src, bool is_bf16, int64_t head_dim, float* dst) {
    if (!is_bf16) {
      std::memcpy(dst, src, sizeof(float) * static_cast<size_t>(head_dim));
      return;
    }
    const auto* bits = reinterpret_cast<const uint16_t*>(src);
    for (int64_t d = 0; d < head_dim; ++d) dst[d] = bf16_to_f32(bits[d]);
  }
};

/// C [num_rows, kRows] += A [num_rows, k] B [k, kRows], elements of 32 bits, or = if not
/// kAccumulate: B's rows are vectors of a subtile's rows, A's elements are broadcast. A and B come
/// in num_pieces of k; kRowsAtOnce x kVecsAtOnce accumulators stay in registers over all of them.
template <class Isa, bool kAccumulate>
inline void multiply(const std::byte* const* a_pieces, int num_pieces, int64_t a_row_stride,
                     int64_t a_k_stride, const float* b, int64_t num_rows, int64_t k, float* c) {
  using Simd = typename Isa::Simd;
  using Vec = typename Simd::Vec;
  constexpr int kR = Isa::kRowsAtOnce, kV = Isa::kVecsAtOnce, kLanes = Simd::kLanes;
  static_assert(Isa::kRows % (kV * kLanes) == 0 && kGroupKeys % kR == 0);
  for (int64_t row = 0; row < num_rows; row += kR) {
    for (int64_t col = 0; col < Isa::kRows; col += kV * kLanes) {
      Vec sum[kR][kV];
      for (int i = 0; i < kR; ++i) {
        for (int j = 0; j < kV; ++j) {
          sum[i][j] = kAccumulate ? Simd::load(c + (row + i) * Isa::kRows + col + j * kLanes)
                                  : Simd::broadcast(0);
        }
      }
      const float* b_row = b + col;
      for (int piece = 0; piece < num_pieces; ++piece) {
        const float* a = reinterpret_cast<const float*>(a_pieces[piece]) + row * a_row_stride;
        for (int64_t i_k = 0; i_k < k; ++i_k, a += a_k_stride, b_row += Isa::kRows) {
          Vec b_vec[kV];
          for (int j = 0; j < kV; ++j) b_vec[j] = Simd::load(b_row + j * kLanes);
          for (int i = 0; i < kR; ++i) {
            for (int j = 0; j < kV; ++j) {
              sum[i][j] = Isa::dot(a + i * a_row_stride, b_vec[j], sum[i][j]);
            }
          }
        }
      }
      for (int i = 0; i < kR; ++i) {
        for (int j = 0; j < kV; ++j) {
          Simd::store(c + (row + i) * Isa::kRows + col + j * kLanes, sum[i][j]);
        }
      }
    }
  }
}

/// Both products, one after the other; nothing runs beside them.
template <class Isa, class Beside>
inline void multiply_in_turn(const Products& products, Beside&&) {
  const int64_t head_dim = products.head_dim;
  if (products.num_values > 0) {
    const auto add = products.is_first ? multiply<Isa, false> : multiply<Isa, true>;
    add(products.values, products.num_values, 1, head_dim, products.p, head_dim,
        kGroupKeys / Isa::kPack, products.o);
  }
  for (int i = 0; i < products.num_keys; ++i) {
    multiply<Isa, false>(&products.keys[i], 1, Isa::Layout::padded_head_dim(head_dim) / Isa::kPack,
                         1, products.q, kGroupKeys, head_dim / Isa::kPack,
                         products.s + i * kGroupKeys * Isa::kRows);
  }
}

/// Weights of f32.
template <class Isa>
struct F32Weights {
  using Simd = typename Isa::Simd;
  using Vec = typename Simd::Vec;
  Vec sum, top;

  F32Weights(Vec sum_so_far, Vec top_so_far) : sum(sum_so_far), top(top_so_far) {}

  /// Two vectors of dst, a row of P^T apart: 2^even and 2^odd.
  void add(Vec even, Vec odd, float* dst) {
    const Vec a = Simd::template exp2<5>(even), b = Simd::template exp2<5>(odd);
    Simd::store(dst, a);
    Simd::store(dst + Isa::kRows, b);
    sum += a + b;
  }
};

/// What f32 kernels share; Derived adds Simd, kRows and the register blocking.
template <class Derived, class SimdType>
struct F32Isa {
  using Simd = SimdType;
  using Layout = F32Layout;
  static constexpr int kPack = 1;
  static constexpr int kBatchGroups = 2;
  static constexpr bool kOverlaps = false;
  using Weights = F32Weights<Derived>;
  struct Session {};

  static typename Simd::Vec dot(const float* a, typename Simd::Vec b, typename Simd::Vec c) {
    return Simd::multiply_add(Simd::broadcast(*a), b, c);
  }

  template <class Beside>
  static void multiply(const Products& products, Beside&& beside) {
    multiply_in_turn<Derived>(products, beside);
  }

  // Rows of the group that are past its last key.
  static void clear_rows(const PackJob& job, float* rows) {
    const int64_t num = (kGroupKeys - job.num_keys) * job.head_dim;
    std::memset(rows + job.num_keys * job.head_dim, 0, sizeof(float) * static_cast<size_t>(num));
  }

  static bool pack(const PackJob& job, std::byte* keys, std::byte* values) {
    auto* k = reinterpret_cast<float*>(keys);
    auto* v = reinterpret_cast<float*>(values);
    if (keys != nullptr) {
      for (int t = 0; t < job.num_keys; ++t) {
        Layout::copy_row(job.k[t], job.is_bf16, job.head_dim, k + t * job.head_dim);
      }
      clear_rows(job, k);
    }
    clear_rows(job, v);
    uint32_t any_non_finite = 0;
    for (int t = 0; t < job.num_keys; ++t, v += job.head_dim) {
      Layout::copy_row(job.v[t], job.is_bf16, job.head_dim, v);
      auto* bits = reinterpret_cast<uint32_t*>(values) + t * job.head_dim;
      for (int64_t d = 0; d < job.head_dim; ++d) {
        const uint32_t is_non_finite = (bits[d] & 0x7f800000u) == 0x7f800000u ? ~0u : 0u;
        any_non_finite |= is_non_finite;
        bits[d] &= ~is_non_finite;
      }
    }
    return any_non_finite != 0;
  }
};

}  // namespace
}  // namespace fovea::cpu
