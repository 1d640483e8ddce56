// Tiles of f8e4m3 keys and values for the tensor cores' products in f16, which holds every code
// exactly. A turned page of V has its tokens in the order in which mma.sync wants them.
#pragma once

#include <cuda_fp16.h>

#include "fovea/attention/cuda/decode_keys.cuh"
#include "fovea/tensor/cuda/ptx/float8.h"
#include "fovea/tensor/cuda/ptx/math.h"
#include "fovea/tensor/cuda/ptx/mbarrier.h"
#include "fovea/tensor/cuda/ptx/mma.h"
#include "fovea/tensor/cuda/ptx/tma.h"

namespace fovea::cuda {

/// As DecodeTile, of 32 keys: sectors of a column of V are read whole.
class DecodeTileF8 {
 public:
  using Out = __nv_bfloat16;
  static constexpr int kHeadDim = 128;
  static constexpr int kKeys = 32;
  /// Small weights lose no bits in f16 that matter: they are subnormal below 2^-29.
  static constexpr float kWeightLog2 = 15;
  static constexpr bool kRescalesPages = true;      // a new key may change its whole page
  static constexpr int kKBytes = kKeys * kHeadDim;  // of V too
  static constexpr int kStageBytes = 2 * kKBytes;   // of a tile, of a warp
  using KeySplits = Splits<kKeys>;

  __device__ DecodeTileF8(const DecodeParams& p, int seq, int kv_head)
      : places_(p.common, seq, kv_head), k_scales_(p.common.k_scale), v_scales_(p.common.v_scale) {}

  /// Codes, or bf16 that is multiplied by a power of 2 for each head so that f16 can hold it.
  __device__ void take_queries(const DecodeParams& p, int q_row, int first_head) {
    const int64_t row = q_row * p.q_row_stride + first_head * p.q_head_stride;
#pragma unroll
    for (int side = 0; side < 2; ++side) {
      const int head = group() + 8 * side;
      const bool is_there = head < p.common.group_size;
      const int64_t at = row + head * p.q_head_stride + quad() * 16;
      factors_[side] = p.common.scale_log2;
      if (p.q_is_f8) {
        if (p.common.q_scale != nullptr && is_there) {
          factors_[side] *= p.common.q_scale[first_head + head];
        }
        const auto* q = static_cast<const uint8_t*>(p.q) + at;
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          const uint4 codes = is_there ? *reinterpret_cast<const uint4*>(q + j * 64) : uint4{};
#pragma unroll
          for (int w = 0; w < 4; ++w) {
            ptx::widen_e4m3(word(codes, w), q_[side][j * 8 + 2 * w], q_[side][j * 8 + 2 * w + 1]);
          }
        }
      } else {
        const auto* q = static_cast<const __nv_bfloat16*>(p.q) + at;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const auto* from = reinterpret_cast<const uint4*>(q + i / 2 * 64 + i % 2 * 8);
          const uint4 bits = is_there ? *from : uint4{};
#pragma unroll
          for (int w = 0; w < 4; ++w) q_[side][i * 4 + w] = word(bits, w);
        }
        factors_[side] *= narrow(q_[side]);
      }
    }
  }

  /// By one thread: asks for a tile's keys and values.
  __device__ void ask(const DecodeMaps& maps, int first_key, uint32_t stage,
                      uint32_t barrier) const {
    ptx::mbarrier_arrive_expect(barrier, kStageBytes);
    const ptx::BoxCoordinates keys = places_.tile(first_key, 0);
    ptx::tma_load(stage, &maps.k, barrier, keys, policy_);
    ptx::tma_load(stage + kKBytes, &maps.v, barrier, {keys.row, 0, keys.head, keys.page}, policy_);
  }
  /// Asks for a tile's scales, which take_keys() makes those at hand.
  __device__ void ask_scales(int first_key) {
    const int page = places_.page_of(first_key);
    next_k_scale_ = scale_of(k_scales_, page);
    next_v_scale_ = scale_of(v_scales_, page);
  }

  __device__ void take_keys(const uint8_t* stage) {
    k_scale_ = next_k_scale_;
    v_scale_ = next_v_scale_;
#pragma unroll
    for (int i = 0; i < kKLoads; ++i) {  // swizzled over 128 bytes
      const uint8_t* row = stage + (i / 2 * 8 + group()) * kHeadDim;
      k_[i] = *reinterpret_cast<const uint4*>(row + ((i % 2 * 4 + quad()) ^ group()) * 16);
    }
  }
  /// Values of keys that are not seen become zeros.
  __device__ void take_values(const uint8_t* stage, int first_key, const KeySplits& splits) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {  // swizzled over 32 bytes
      const uint8_t* column = stage + kKBytes + group() * kKeys + (half ^ group() / 4) * 16;
#pragma unroll
      for (int tile = 0; tile < kHeadDim / 8; ++tile) {
        v_[half][tile] = *reinterpret_cast<const uint32_t*>(column + tile * 8 * kKeys + quad() * 4);
      }
    }
    if (splits.are_seen(first_key)) return;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      uint32_t seen = 0;
#pragma unroll
      for (int i = 0; i < 4; ++i) {  // in the order of f8_value_slot()
        const int key = first_key + half * 16 + quad() * 2 + i % 2 + i / 2 * 8;
        if (splits.is_seen(key)) seen |= 0xffu << (8 * i);
      }
#pragma unroll
      for (uint32_t& codes : v_[half]) codes &= seen;
    }
  }

  __device__ void score(float (&logits)[kKeys / 8][4]) const {
    const float factors[2] = {factors_[0] * k_scale_, factors_[1] * k_scale_};
#pragma unroll
    for (int eighth = 0; eighth < kKeys / 8; ++eighth) {
      float sums[4] = {};
#pragma unroll
      for (int step = 0; step < kHeadDim / 16; ++step) {
        const uint32_t a[4] = {q_[0][2 * step], q_[1][2 * step], q_[0][2 * step + 1],
                               q_[1][2 * step + 1]};
        uint32_t low, high;
        ptx::widen_e4m3(word(k_[2 * eighth + step / 4], step % 4), low, high);
        ptx::mma_m16n8k16<__half>(sums, a, low, high);
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) logits[eighth][i] = sums[i] * factors[i / 2];
    }
  }

  __device__ void add(const float (&weights)[kKeys / 8][4], const float (&shrink)[2],
                      float (&out)[kHeadDim / 8][4]) const {
    uint32_t a[2][4];
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const float(&of_keys)[4] = weights[i / 2];
      a[i / 4][i % 4] = ptx::pack2<__half>(of_keys[i % 2 * 2], of_keys[i % 2 * 2 + 1]);
    }
#pragma unroll
    for (int tile = 0; tile < kHeadDim / 8; ++tile) {
      float sums[4] = {};
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        uint32_t low, high;
        ptx::widen_e4m3(v_[half][tile], low, high);
        ptx::mma_m16n8k16<__half>(sums, a[half], low, high);
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        out[tile][i] = fmaf(sums[i], v_scale_, out[tile][i] * shrink[i / 2]);
      }
    }
  }

  __device__ static int place_of(int column) { return column; }

  __device__ static int group() { return lane() / 4; }
  __device__ static int quad() { return lane() % 4; }

 private:
  static constexpr int kKLoads = kKeys * kHeadDim / 16 / 32;  // of 16 bytes, of a thread

  __device__ static int lane() { return static_cast<int>(threadIdx.x) % 32; }
  /// Past the L1 cache, where what a page has grown by may not be seen.
  __device__ float scale_of(const F8Scale& scale, int page) const {
    return scale.values != nullptr
               ? __ldcg(scale.values + page * scale.page_stride + places_.kv_head())
               : 1;
  }
  /// Turns bf16 into f16, times a power of 2 that brings the head's largest magnitude to 2^14 ...
  /// 2^15. Returns what undoes it.
  __device__ static float narrow(uint32_t (&q)[16]) {
    uint32_t largest = 0;
#pragma unroll
    for (const uint32_t pair : q) largest = __vmaxu2(largest, pair & 0x7fff7fffu);
    largest = max(largest >> 16, largest & 0xffffu);
    largest = max(largest, __shfl_xor_sync(~0u, largest, 1));
    largest = max(largest, __shfl_xor_sync(~0u, largest, 2));
    const uint32_t exponent = min(127 + 127 + 14 - (largest >> 7), 253u);
    const float factor = __uint_as_float(exponent << 23);
#pragma unroll
    for (uint32_t& pair : q) {
      const float2 wide = ptx::unpack2<__nv_bfloat16>(pair);
      pair = ptx::pack2<__half>(wide.x * factor, wide.y * factor);
    }
    return __uint_as_float((254 - exponent) << 23);
  }

  KeyPlaces places_;
  F8Scale k_scales_, v_scales_;
  float k_scale_ = 1, v_scale_ = 1, next_k_scale_ = 1, next_v_scale_ = 1;
  float factors_[2];  // of the logits of both heads
  uint64_t policy_ = ptx::evict_first_policy();
  uint32_t q_[2][16];  // f16
  uint4 k_[kKLoads];
  uint32_t v_[2][kHeadDim / 8];
};

}  // namespace fovea::cuda
