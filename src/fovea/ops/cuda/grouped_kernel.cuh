// What the kernels of grouped products share. One persistent CTA per SM walks output tiles of 128
// rows x 256 rows of weights: a warpgroup streams both operands into a ring of stages, 128 bytes of
// their depth at a time, and two warpgroups multiply 64 rows each. A gated product takes its 256
// rows of weights from two places, 128 gates and the 128 values they open for: a thread then holds
// both of a pair. It takes its rows from wherever they lie.
#pragma once

#include <cuda_bf16.h>

#include "fovea/ops/cuda/grouped_launch.h"
#include "fovea/tensor/cuda/check.h"
#include "fovea/tensor/cuda/ptx/cp_async.h"
#include "fovea/tensor/cuda/ptx/math.h"
#include "fovea/tensor/cuda/ptx/mbarrier.h"
#include "fovea/tensor/cuda/ptx/swizzle128.h"
#include "fovea/tensor/cuda/ptx/tma.h"

namespace fovea::cuda {

constexpr int kGroupedThreads = 3 * 128;
constexpr int kConsumerWarps = 8;
constexpr int kProducerThreads = 128;
constexpr int kConsumerRegisters = 232, kProducerRegisters = 40;
constexpr int kStages = 4;
constexpr int kTileRows = 128;
constexpr uint32_t kBoxBytes = kTileRows * ptx::kPanelRowBytes;
constexpr uint32_t kStageBytes = 3 * kBoxBytes;  // rows, and two boxes of weights
constexpr uint32_t kGroupedSharedBytes = kStages * kStageBytes + ptx::kSwizzleAtomBytes;
constexpr uint32_t kInstructionBytes = 32;  // of a row, that one wgmma takes

struct alignas(16) Tile {
  int row, column, weight_row;
  int num_rows;  // that anyone reads
};

/// What consumers know of a stage beside its operands.
struct StageFacts {
  Tile tile;
  // f8 only
  float weight_scales[2];
  float row_scales[kTileRows];
};

/// Where a stage lies, and the barriers around it; shared addresses.
struct Ring {
  StageFacts* all_facts;
  uint32_t stages, full, empty;
  int stage = 0;
  uint32_t parity = 0;

  __device__ uint32_t data() const { return stages + static_cast<uint32_t>(stage) * kStageBytes; }
  __device__ StageFacts& facts() const { return all_facts[stage]; }
  __device__ uint32_t full_barrier() const { return full + static_cast<uint32_t>(stage) * 8; }
  __device__ uint32_t empty_barrier() const { return empty + static_cast<uint32_t>(stage) * 8; }
  __device__ void advance() {
    if (++stage < kStages) return;
    stage = 0;
    parity ^= 1;
  }
};

/// By every warp of both consumers.
__device__ inline void release_stage(uint32_t empty_barrier) {
  __syncwarp();
  if (threadIdx.x % 32 == 0) ptx::mbarrier_arrive(empty_barrier);
}

__device__ inline int num_tiles(const GroupedParams& p) {
  const int row_tiles = p.first_tile != nullptr ? p.first_tile[p.num_experts] : p.row_tiles;
  return row_tiles * p.column_tiles;
}

/// Tiles of an expert run along up to 16 row tiles first, then along the columns: those at work at
/// one time share rows and weights in the L2 cache.
__device__ inline Tile tile_at(const GroupedParams& p, int index) {
  constexpr int kBlock = 16;
  int expert = 0, first = 0, row_tiles = p.row_tiles, rows = p.rows;
  if (p.first_tile != nullptr) {
    expert = p.expert_of_tile[index / p.column_tiles];
    first = p.first_tile[expert];
    row_tiles = p.first_tile[expert + 1] - first;
    rows = p.rows_of_expert[expert];
  }
  const int local = index - first * p.column_tiles;
  const int block = local / (kBlock * p.column_tiles);
  const int block_rows = min(kBlock, row_tiles - block * kBlock);
  const int in_block = local - block * kBlock * p.column_tiles;
  const int column = in_block / block_rows * p.columns_per_tile;
  const int row_tile = block * kBlock + in_block % block_rows;
  return {(first + row_tile) * kTileRows, column, expert * p.weight_rows + column,
          min(rows - row_tile * kTileRows, kTileRows)};
}

/// What a producing thread copies by itself: of a gathered stage 4 rows, of each every fourth piece
/// of 16 bytes; the scale of one row; and two threads the scales of weights.
template <bool kGathers, bool kHasScales>
class Copier {
 public:
  __device__ Copier(const GroupedParams& p, const Tile& tile) {
    const int thread = static_cast<int>(threadIdx.x) % 128;
    if constexpr (kGathers) {
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
    if constexpr (kHasScales) {
      const int row = tile.row + last_or(thread, tile);
      row_scale_ = p.in_scales + (kGathers ? p.in_rows[row] : row);
      // The last tile's second half may lie behind all matrices.
      const int last = p.num_experts * p.weight_rows / 128 - 1;
      const int block = (tile.weight_row + thread % 2 * p.second_half) / 128;
      weight_scale_ = p.weight_scales + int64_t{min(block, last)} * p.num_steps;
    }
  }
  __device__ void copy(const GroupedParams& p, uint32_t box, StageFacts& facts, int step) const {
    const int thread = static_cast<int>(threadIdx.x) % 128;
    if constexpr (kGathers) {
      const int at = step * static_cast<int>(ptx::kPanelRowBytes);
      const bool is_there = at + byte_ < p.depth_bytes,
                 other_is_there = at + 64 + byte_ < p.depth_bytes;
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        const uint32_t rows_at = box + static_cast<uint32_t>(i) * 32 * ptx::kPanelRowBytes;
        ptx::copy_async16(rows_at + to_, from_[i] + at, is_there);
        ptx::copy_async16(rows_at + (to_ ^ 64), from_[i] + at + 64, other_is_there);
      }
    }
    if constexpr (kHasScales) {
      ptx::copy_async4(ptx::shared_address(facts.row_scales + thread),
                       row_scale_ + step * p.in_scale_stride);
      if (thread < 2) {
        ptx::copy_async4(ptx::shared_address(facts.weight_scales + thread), weight_scale_ + step);
      }
    }
  }

 private:
  static constexpr int kRows = 4;
  static __device__ int last_or(int row, const Tile& tile) { return min(row, tile.num_rows - 1); }
  const uint8_t* from_[kRows];
  uint32_t to_;
  int byte_;
  const float *row_scale_, *weight_scale_;
};

/// The producing warpgroup: one thread loads boxes, all copy single rows and scales. No thread
/// waits for its copies, and so none can call async_proxy_fence() for them: consumers do.
template <bool kGathers, bool kHasScales>
__device__ inline void produce(const CUtensorMap& in, const CUtensorMap& weights,
                               const GroupedParams& p, Ring ring) {
  constexpr bool kCopies = kGathers || kHasScales;
  const int thread = static_cast<int>(threadIdx.x) % 128;
  if (!kCopies && thread != 0) return;
  const int end = num_tiles(p);
  for (int index = static_cast<int>(blockIdx.x); index < end;
       index += static_cast<int>(gridDim.x)) {
    const Tile tile = tile_at(p, index);
    const Copier<kGathers, kHasScales> copier(p, tile);
    for (int step = 0; step < p.num_steps; ++step) {
      ptx::mbarrier_wait(ring.empty_barrier(), ring.parity ^ 1);
      const uint32_t full = ring.full_barrier();
      if (thread == 0) {
        ring.facts().tile = tile;
        ptx::mbarrier_arrive_expect(full, kStageBytes - (kGathers ? kBoxBytes : 0));
        const int column = step * p.depth_per_step;
        if constexpr (!kGathers) {
          ptx::tma_load(ring.data(), &in, full, {.column = column, .row = tile.row});
        }
        ptx::tma_load(ring.data() + kBoxBytes, &weights, full,
                      {.column = column, .row = tile.weight_row});
        ptx::tma_load(ring.data() + 2 * kBoxBytes, &weights, full,
                      {.column = column, .row = tile.weight_row + p.second_half});
      }
      if constexpr (kCopies) {
        copier.copy(p, ring.data(), ring.facts(), step);
        ptx::mbarrier_arrive_after_copies(full);
      }
      ring.advance();
    }
  }
}

/// A consumer none of whose rows anyone reads lets a tile's stages pass.
__device__ inline void skip_tile(const GroupedParams& p, Ring& ring) {
  for (int step = 0; step < p.num_steps; ++step) {
    ptx::mbarrier_wait(ring.full_barrier(), ring.parity);
    release_stage(ring.empty_barrier());
    ring.advance();
  }
}

/// Word i of lane t goes to lane i as its word t, among the 4 lanes of a quad.
__device__ inline void transpose_quad(uint32_t (&words)[4]) {
  const int lane = static_cast<int>(threadIdx.x) % 4;
#pragma unroll
  for (int bit = 1; bit <= 2; bit *= 2) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if ((i & bit) != 0) continue;
      uint32_t& low = words[i];
      uint32_t& high = words[i + bit];
      const bool is_high = (lane & bit) != 0;
      const uint32_t received = __shfl_xor_sync(~0u, is_high ? low : high, bit);
      (is_high ? low : high) = received;
    }
  }
}

/// In its tile, the first of the two rows that a thread holds of its warpgroup's 64; the other is 8
/// further on.
__device__ inline int row_of_thread(int warpgroup) {
  const int thread = static_cast<int>(threadIdx.x) % 128;
  return warpgroup * 64 + thread / 32 * 16 + thread % 32 / 4;
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

/// A consumer's Store: the sums as they are.
struct StoreBf16 {
  static constexpr bool kGathers = false;
  static __device__ void store(const GroupedParams& p, const Tile& tile, int warpgroup,
                               const float (&sums)[128]) {
    store_bf16<256>(p, tile, warpgroup, [&](int at) { return float2{sums[at], sums[at + 1]}; });
  }
};

/// `Consumer::consume(params, ring, warpgroup)` multiplies and stores.
template <typename Consumer>
__global__ __launch_bounds__(kGroupedThreads,
                             1) void grouped_kernel(const __grid_constant__ CUtensorMap in,
                                                    const __grid_constant__ CUtensorMap weights,
                                                    const GroupedParams p) {
  constexpr bool kGathers = Consumer::kGathers, kHasScales = Consumer::kHasScales;
  extern __shared__ uint8_t dynamic[];
  __shared__ uint64_t full[kStages], empty[kStages];
  __shared__ StageFacts facts[kStages];
  constexpr uint32_t kAtom = ptx::kSwizzleAtomBytes;
  const Ring ring{facts, (ptx::shared_address(dynamic) + kAtom - 1) / kAtom * kAtom,
                  ptx::shared_address(full), ptx::shared_address(empty)};
  if (threadIdx.x == 0) {
    for (uint32_t i = 0; i < kStages; ++i) {
      ptx::mbarrier_init(ring.full + 8 * i, kGathers || kHasScales ? 1 + kProducerThreads : 1);
      ptx::mbarrier_init(ring.empty + 8 * i, kConsumerWarps);
    }
    ptx::mbarrier_init_fence();
  }
  __syncthreads();
  const int warpgroup = static_cast<int>(threadIdx.x) / 128;
  if (warpgroup == 2) {
    ptx::release_registers<kProducerRegisters>();
    produce<kGathers, kHasScales>(in, weights, p, ring);
  } else {
    ptx::claim_registers<kConsumerRegisters>();
    Consumer::consume(p, ring, warpgroup);
  }
}

template <typename Consumer>
void launch_grouped_kernel(const GroupedLaunch& launch) {
  check_cuda(cudaFuncSetAttribute(grouped_kernel<Consumer>,
                                  cudaFuncAttributeMaxDynamicSharedMemorySize, kGroupedSharedBytes),
             "configuring grouped_kernel");
  grouped_kernel<Consumer>
      <<<static_cast<unsigned>(launch.num_ctas), kGroupedThreads, kGroupedSharedBytes,
         launch.stream>>>(launch.in, launch.weights, launch.params);
  check_cuda(cudaGetLastError(), "launching grouped_kernel");
}

}  // namespace fovea::cuda
