// Grouped products in bf16.
#include <cuda_bf16.h>

#include "fovea/ops/cuda/gate.cuh"
#include "fovea/ops/cuda/grouped_kernel.cuh"
#include "fovea/tensor/cuda/ptx/wgmma.h"

namespace fovea::cuda {
namespace {

/// What a producing thread copies of gathered rows: of 4 of them every fourth piece of 16 bytes.
template <bool kGathers>
class RowCopier {
 public:
  __device__ RowCopier(const GroupedParams& p, const Tile& tile) {
    if constexpr (!kGathers) return;
    const int thread = static_cast<int>(threadIdx.x) % 128;
    // Rows of the two halves of 8 lanes differ in bit 2, so that their pieces lie in other banks.
    const int first_row = thread / 32 * 8 + thread / 4 % 2 * 4 + thread / 8 % 4;
    byte_ = thread % 4 * 16;
    to_ = ptx::swizzle128(static_cast<uint32_t>(first_row * 128 + byte_));
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      // Rows that nobody reads are copies of the last one.
      const int row = tile.row + last_or(first_row + i * 32, tile);
      from_[i] = static_cast<const uint8_t*>(p.in) + p.in_rows[row] * p.in_stride_bytes + byte_;
    }
  }
  __device__ void copy(const GroupedParams& p, uint32_t box, int step) const {
    const int at = step * static_cast<int>(ptx::kPanelRowBytes);
    const bool is_there = at + byte_ < p.depth_bytes,
               other_is_there = at + 64 + byte_ < p.depth_bytes;
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const uint32_t rows_at = box + static_cast<uint32_t>(i) * 32 * ptx::kPanelRowBytes;
      ptx::copy_16(rows_at + to_, from_[i] + at, is_there);
      ptx::copy_16(rows_at + (to_ ^ 64), from_[i] + at + 64, other_is_there);
    }
  }

 private:
  static constexpr int kRows = 4;
  static __device__ int last_or(int row, const Tile& tile) { return min(row, tile.num_rows - 1); }
  const uint8_t* from_[kRows];
  uint32_t to_;
  int byte_;
};

/// By the producing warpgroup: one thread loads boxes, all copy gathered rows. No thread waits for
/// its copies, and so none can call async_proxy_fence() for them: consumers do.
template <bool kGathers>
__device__ inline void produce_bf16(const CUtensorMap& in, const CUtensorMap& weights,
                                    const GroupedParams& p, Ring ring) {
  const int thread = static_cast<int>(threadIdx.x) % 128;
  if (!kGathers && thread != 0) return;
  TileTaker taker;
  TileReader tiles;
  if (thread == 0) taker.take(p, ring);
  for (Tile tile = tiles.next(ring); tile.num_rows > 0; tile = tiles.next(ring)) {
    if (thread == 0) taker.ask(p);
    const RowCopier<kGathers> copier(p, tile);
    for (int step = 0; step < p.num_steps; ++step) {
      if (thread == 0 && step == 1) taker.take(p, ring);
      ptx::mbarrier_wait(ring.empty_barrier(), ring.parity ^ 1);
      const uint32_t full = ring.full_barrier();
      if (thread == 0) {
        ring.facts().tile = tile;
        ptx::mbarrier_arrive_expect(full, kStageBytes - (kGathers ? kBoxBytes : 0));
        ask_for_boxes<kGathers>(in, weights, p, tile, step, ring);
      }
      if constexpr (kGathers) {
        copier.copy(p, ring.data(), step);
        ptx::mbarrier_arrive_after_copies(full);
      }
      ring.advance();
    }
    if (thread == 0 && p.num_steps == 1) taker.take(p, ring);
  }
  if (thread == 0) end_stages(ring, kGathers ? 1 + kProducerThreads : 1);
}

/// Waits for the next stage and asks for its products; gives the barrier that releases it.
template <bool kIsFirst, bool kGathers>
__device__ inline uint32_t multiply_stage(float (&sums)[128], Ring& ring, int warpgroup) {
  using Product = ptx::Wgmma<__nv_bfloat16, 256>;
  ptx::mbarrier_wait(ring.full_barrier(), ring.parity);
  if constexpr (kGathers) ptx::async_proxy_fence();
  const uint64_t a =
      ptx::k_major_descriptor(ring.data() + static_cast<uint32_t>(warpgroup) * kBoxBytes / 2);
  const uint64_t b = ptx::k_major_descriptor(ring.data() + kBoxBytes);
  ptx::wgmma_fence();
  if constexpr (kIsFirst) {
    Product::first(sums, a, b);
  } else {
    Product::add(sums, a, b);
  }
#pragma unroll
  for (uint32_t i = 1; i < ptx::kPanelRowBytes / kInstructionBytes; ++i) {
    Product::add(sums, ptx::advance(a, i * kInstructionBytes),
                 ptx::advance(b, i * kInstructionBytes));
  }
  ptx::wgmma_commit();
  const uint32_t empty_barrier = ring.empty_barrier();
  ring.advance();
  return empty_barrier;
}

/// Rounds the warpgroup's rows to bf16 and stores them, 16 bytes a thread. `value` gives
/// (at, at + 1), the columns 8 (at / 4) + 2 (thread % 4) of the row that bit 1 of `at` chooses.
template <int kColumns, typename Value>
__device__ inline void store_bf16(const GroupedParams& p, const Tile& tile, int warpgroup,
                                  Value value) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = row_of_thread(warpgroup) + half * 8;
    __nv_bfloat16* to =
        static_cast<__nv_bfloat16*>(p.out) + (tile.row + row) * p.out_stride + tile.column;
#pragma unroll
    for (int group = 0; group < kColumns / 32; ++group) {
      uint32_t words[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float2 pair = value((group * 4 + i) * 4 + half * 2);
        words[i] = ptx::pack2<__nv_bfloat16>(pair.x, pair.y);
      }
      transpose_quad(words);
      const int column = group * 32 + static_cast<int>(threadIdx.x) % 4 * 8;
      if (row < tile.num_rows && tile.column + column < p.columns) {
        *reinterpret_cast<uint4*>(to + column) = {words[0], words[1], words[2], words[3]};
      }
    }
  }
}

/// The sums as they are.
struct StoreBf16 {
  static constexpr bool kGathers = false;
  static __device__ void store(const GroupedParams& p, const Tile& tile, int warpgroup,
                               const float (&sums)[128]) {
    store_bf16<256>(p, tile, warpgroup, [&](int at) { return float2{sums[at], sums[at + 1]}; });
  }
};

/// `Store::store(params, tile, warpgroup, sums)` writes a tile.
template <typename Store>
struct Work {
  static constexpr bool kGathers = Store::kGathers, kOverlaps = false;
  static constexpr int kFullArrivals = kGathers ? 1 + kProducerThreads : 1;

  static __device__ void produce(const CUtensorMap& in, const CUtensorMap& weights,
                                 const GroupedParams& p, const Ring& ring) {
    produce_bf16<kGathers>(in, weights, p, ring);
  }

  static __device__ void consume(const GroupedParams& p, Ring ring, int warpgroup) {
    while (true) {
      ptx::mbarrier_wait(ring.full_barrier(), ring.parity);
      const Tile tile = ring.facts().tile;
      if (tile.num_rows == 0) break;
      if (warpgroup * 64 >= tile.num_rows) {
        skip_tile(p, ring);
        continue;
      }
      float sums[128];
      uint32_t held = multiply_stage<true, kGathers>(sums, ring, warpgroup);
      for (int step = 1; step < p.num_steps; ++step) {
        const uint32_t next = multiply_stage<false, kGathers>(sums, ring, warpgroup);
        ptx::wgmma_wait<1>();
        release_stage(held);
        held = next;
      }
      ptx::wgmma_wait<0>();
      release_stage(held);
      Store::store(p, tile, warpgroup, sums);
    }
  }
};

/// Gated values of a tile: of a thread's sums, gates in [0, 64) and what they open for in [64,
/// 128). The function of gpt-oss comes with a bias.
template <GateFunction kFunction>
__device__ inline float gated_sum(const GroupedParams& p, const Tile& tile,
                                  const float (&sums)[128], int at) {
  float gate = sums[at], up = sums[at + 64];
  if constexpr (kFunction == GateFunction::kClampedSwiglu) {
    const int column = at / 4 * 8 + static_cast<int>(threadIdx.x) % 4 * 2 + at % 2;
    if (tile.column + column < p.columns) {
      gate += p.bias[tile.weight_row + column];
      up += p.bias[tile.weight_row + p.second_half + column];
    }
  }
  return gated<kFunction>(gate, up);
}

template <GateFunction kFunction>
struct StoreGated {
  static constexpr bool kGathers = true;
  static __device__ void store(const GroupedParams& p, const Tile& tile, int warpgroup,
                               const float (&sums)[128]) {
    store_bf16<128>(p, tile, warpgroup, [&](int at) {
      return float2{gated_sum<kFunction>(p, tile, sums, at),
                    gated_sum<kFunction>(p, tile, sums, at + 1)};
    });
  }
};

}  // namespace

void launch_grouped_bf16(const GroupedLaunch& launch) {
  launch_grouped_kernel<Work<StoreBf16>>(launch);
}

void launch_grouped_bf16_gated(const GroupedLaunch& launch, GateFunction function) {
  with_gate_function(function, [&](auto constant) {
    launch_grouped_kernel<Work<StoreGated<decltype(constant)::value>>>(launch);
  });
}

}  // namespace fovea::cuda
