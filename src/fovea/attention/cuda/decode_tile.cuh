// Tiles of 16-bit keys and values as operands of mma.sync: heads are its 16 rows, and since a sum
// over columns may be taken in any order, each thread's share of a row of K, or of V, is 16 bytes
// that lie side by side.
#pragma once

#include "fovea/attention/cuda/decode_keys.cuh"
#include "fovea/tensor/cuda/ptx/math.h"
#include "fovea/tensor/cuda/ptx/mbarrier.h"
#include "fovea/tensor/cuda/ptx/mma.h"
#include "fovea/tensor/cuda/ptx/tma.h"

namespace fovea::cuda {

/// A warp's tile: what its thread needs of q, K and V for heads `group` and `group` + 8.
template <typename ElementOfKv, int kDim>
class DecodeTile {
 public:
  using Element = ElementOfKv;
  using Out = Element;
  static constexpr int kHeadDim = kDim;
  static constexpr int kKeys = 16;
  static constexpr float kWeightLog2 = 0;        // the largest weight is 2^this
  static constexpr bool kRescalesPages = false;  // a new key changes nothing but its own rows
  static constexpr int kKLoads = kHeadDim / 32;  // of 16 bytes, of a row
  static constexpr int kVLoads = kHeadDim / 64;
  static constexpr int kPanels = kHeadDim / 64;  // of 128 bytes of each row, swizzled
  static constexpr int kPanelBytes = kKeys * 128;
  static constexpr int kStageBytes = 2 * kPanels * kPanelBytes;  // of a tile, of a warp
  using KeySplits = Splits<kKeys>;

  __device__ DecodeTile(const DecodeParams& p, int seq, int kv_head)
      : places_(p.common, seq, kv_head), scale_log2_(p.common.scale_log2) {}

  __device__ void take_queries(const DecodeParams& p, int q_row, int first_head) {
    const auto* q = static_cast<const Element*>(p.q) + q_row * p.q_row_stride +
                    first_head * p.q_head_stride + quad() * 8;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int head = group() + 8 * half;
#pragma unroll
      for (int j = 0; j < kKLoads; ++j) {
        const auto* from = reinterpret_cast<const uint4*>(q + head * p.q_head_stride + j * 32);
        q_[half][j] = head < p.common.group_size ? *from : uint4{};
      }
    }
  }

  /// By one thread: asks for a tile's keys and values.
  __device__ void ask(const DecodeMaps& maps, int first_key, uint32_t stage,
                      uint32_t barrier) const {
    ptx::mbarrier_arrive_expect(barrier, kStageBytes);
#pragma unroll
    for (int panel = 0; panel < kPanels; ++panel) {
      const ptx::BoxCoordinates at = places_.tile(first_key, panel * 64);
      ptx::tma_load(stage + panel * kPanelBytes, &maps.k, barrier, at, policy_);
      ptx::tma_load(stage + (kPanels + panel) * kPanelBytes, &maps.v, barrier, at, policy_);
    }
  }
  /// Asks for what a tile has beside its keys and values.
  __device__ void ask_scales(int) {}

  __device__ void take_keys(const uint8_t* stage) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int j = 0; j < kKLoads; ++j) {
        k_[half][j] = chunk(stage, j / 2, 8 * half + group(), j % 2 * 4 + quad());
      }
    }
  }
  /// Values of keys that are not seen become zeros.
  __device__ void take_values(const uint8_t* stage, int first_key, const KeySplits& splits) {
    const bool are_seen = splits.are_seen(first_key);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int key = quad() * 2 + i % 2 + i / 2 * 8;
      const bool is_there = are_seen || splits.is_seen(first_key + key);
#pragma unroll
      for (int j = 0; j < kVLoads; ++j) {
        v_[i][j] = is_there ? chunk(stage, kPanels + j, key, group()) : uint4{};
      }
    }
  }

  /// Logits of the keys taken, to the base 2: of eight keys each, as mma.sync spreads them.
  __device__ void score(float (&logits)[kKeys / 8][4]) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float sums[4] = {};
#pragma unroll
      for (int step = 0; step < 2 * kKLoads; ++step) {
        const int j = step / 2, w = step % 2 * 2;
        const uint32_t a[4] = {word(q_[0][j], w), word(q_[1][j], w), word(q_[0][j], w + 1),
                               word(q_[1][j], w + 1)};
        ptx::mma_m16n8k16<Element>(sums, a, word(k_[half][j], w), word(k_[half][j], w + 1));
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) logits[half][i] = sums[i] * scale_log2_;
    }
  }

  /// out = out * shrink + weights * the values taken; shrink: of both heads.
  __device__ void add(const float (&weights)[kKeys / 8][4], const float (&shrink)[2],
                      float (&out)[kHeadDim / 8][4]) const {
    const uint32_t a[4] = {ptx::pack2<Element>(weights[0][0], weights[0][1]),
                           ptx::pack2<Element>(weights[0][2], weights[0][3]),
                           ptx::pack2<Element>(weights[1][0], weights[1][1]),
                           ptx::pack2<Element>(weights[1][2], weights[1][3])};
#pragma unroll
    for (int tile = 0; tile < kHeadDim / 8; ++tile) {
      const int j = tile / 8, w = tile % 8 / 2;
      const uint32_t halves = tile % 2 == 0 ? 0x5410 : 0x7632;
#pragma unroll
      for (int i = 0; i < 4; ++i) out[tile][i] *= shrink[i / 2];
      ptx::mma_m16n8k16<Element>(out[tile], a,
                                 __byte_perm(word(v_[0][j], w), word(v_[1][j], w), halves),
                                 __byte_perm(word(v_[2][j], w), word(v_[3][j], w), halves));
    }
  }

  /// Where column `c` of a head stands among the accumulators of all threads, tile by tile: a
  /// tile holds every eighth of 64.
  __device__ static int place_of(int c) { return c / 64 * 64 + c % 8 * 8 + c % 64 / 8; }

  __device__ static int group() { return static_cast<int>(threadIdx.x) % 32 / 4; }
  __device__ static int quad() { return static_cast<int>(threadIdx.x) % 4; }

 private:
  /// 16 bytes of a row of one of a stage's panels.
  __device__ static uint4 chunk(const uint8_t* stage, int panel, int row, int number) {
    const uint8_t* from = stage + panel * kPanelBytes + row * 128 + (number ^ row % 8) * 16;
    return *reinterpret_cast<const uint4*>(from);
  }

  KeyPlaces places_;
  float scale_log2_;
  uint64_t policy_ = ptx::evict_first_policy();
  uint4 q_[2][kKLoads], k_[2][kKLoads], v_[4][kVLoads];
};

}  // namespace fovea::cuda
