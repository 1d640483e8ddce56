// What the kernels of grouped products share. One persistent CTA per SM walks output tiles of 128
// rows x 256 rows of weights: a warpgroup streams both operands into a ring of stages, 128 bytes of
// their depth at a time, and two warpgroups multiply 64 rows each. A gated product takes its 256
// rows of weights from two places, 128 gates and the 128 values they open for: a thread then holds
// both of a pair. It takes its rows from wherever they lie.
#pragma once

#include "fovea/ops/cuda/grouped_launch.h"
#include "fovea/tensor/cuda/launch_overlapping.h"
#include "fovea/tensor/cuda/ptx/async_copy.h"
#include "fovea/tensor/cuda/ptx/grid_dependency.h"
#include "fovea/tensor/cuda/ptx/math.h"
#include "fovea/tensor/cuda/ptx/mbarrier.h"
#include "fovea/tensor/cuda/ptx/swizzle128.h"
#include "fovea/tensor/cuda/ptx/tma.h"

namespace fovea::cuda {

constexpr int kGroupedThreads = 3 * 128;
constexpr int kConsumerWarps = 8;
constexpr int kProducerThreads = 128;
constexpr int kCopierThreads = 64;  // of them, that copy gathered rows in f8
constexpr int kConsumerRegisters = 224, kProducerRegisters = 56;
constexpr int kStages = 4;
/// Those who load are ahead of those who multiply by fewer tiles, even of one step each.
constexpr uint32_t kAnnouncedTiles = 8;
constexpr int kTileRows = 128;
constexpr uint32_t kBoxBytes = kTileRows * ptx::kPanelRowBytes;
constexpr uint32_t kStageBytes = 3 * kBoxBytes;  // rows, and two boxes of weights
/// Where a consumer warp turns 16 rows of 128 bytes.
constexpr uint32_t kTurnBytes = 16 * ptx::kPanelRowBytes;
constexpr uint32_t kGroupedSharedBytes =
    kStages * kStageBytes + kConsumerWarps * kTurnBytes + ptx::kSwizzleAtomBytes;
constexpr uint32_t kInstructionBytes = 32;  // of a row, that one wgmma takes

struct alignas(16) Tile {
  int row, column, weight_row;
  int num_rows;  // that anyone reads
};

/// What consumers know of a stage beside its operands.
struct alignas(16) StageFacts {
  // f8 only
  float row_scales[kTileRows];
  float weight_scales[2];

  Tile tile;  // none when it has no rows: nothing more comes
};

/// Where a stage lies, and the barriers around it; shared addresses.
struct Ring {
  StageFacts* all_facts;
  Tile* tiles;         // announced ones, of kAnnouncedTiles the tile's number in this CTA
  uint32_t announced;  // a barrier for each
  uint32_t stages, full, copied, empty;  // copied: gathered rows in f8
  int stage = 0;
  uint32_t parity = 0;

  __device__ uint32_t data() const { return stages + static_cast<uint32_t>(stage) * kStageBytes; }
  /// Of a consumer's warp.
  __device__ uint32_t turning() const {
    return stages + kStages * kStageBytes + threadIdx.x / 32 * kTurnBytes;
  }
  __device__ StageFacts& facts() const { return all_facts[stage]; }
  __device__ uint32_t full_barrier() const { return full + static_cast<uint32_t>(stage) * 8; }
  __device__ uint32_t copied_barrier() const { return copied + static_cast<uint32_t>(stage) * 8; }
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

/// One thread's: takes tiles for its CTA from those that all share, and announces them to others
/// who load. Those who multiply find a stage's tile with it.
class TileTaker {
 public:
  /// Asks for the next tile, so that take() need not wait.
  __device__ void ask(const GroupedParams& p) {
    index_ = static_cast<int>(gridDim.x) + atomicAdd(p.next_tile, 1);
  }
  /// None when its num_rows is 0.
  __device__ Tile take(const GroupedParams& p, const Ring& ring) {
    const Tile tile = index_ < num_tiles(p) ? tile_at(p, index_) : Tile{};
    const uint32_t slot = count_++ % kAnnouncedTiles;
    ring.tiles[slot] = tile;
    ptx::mbarrier_arrive(ring.announced + slot * 8);
    return tile;
  }

 private:
  int index_ = static_cast<int>(blockIdx.x);
  uint32_t count_ = 0;
};

/// What others who load know of their CTA's tiles.
class TileReader {
 public:
  /// The next one; none when its num_rows is 0.
  __device__ Tile next(const Ring& ring) {
    const uint32_t slot = count_ % kAnnouncedTiles;
    ptx::mbarrier_wait(ring.announced + slot * 8, count_ / kAnnouncedTiles % 2);
    ++count_;
    return ring.tiles[slot];
  }

 private:
  uint32_t count_ = 0;
};

/// One thread, when all stages have been asked for: tells those who multiply that nothing more
/// comes, by a stage without rows. `arrivals` make a stage full.
__device__ inline void end_stages(const Ring& ring, int arrivals) {
  ptx::mbarrier_wait(ring.empty_barrier(), ring.parity ^ 1);
  ring.facts().tile = {};
  for (int i = 0; i < arrivals; ++i) ptx::mbarrier_arrive(ring.full_barrier());
}

/// A consumer none of whose rows anyone reads lets a tile's stages pass.
__device__ inline void skip_tile(const GroupedParams& p, Ring& ring) {
  for (int step = 0; step < p.num_steps; ++step) {
    ptx::mbarrier_wait(ring.full_barrier(), ring.parity);
    release_stage(ring.empty_barrier());
    ring.advance();
  }
}

/// One thread: asks for a step's boxes, of rows unless they are gathered, and both of weights.
template <bool kGathers>
__device__ inline void ask_for_boxes(const CUtensorMap& in, const CUtensorMap& weights,
                                     const GroupedParams& p, const Tile& tile, int step,
                                     const Ring& ring) {
  const uint32_t full = ring.full_barrier();
  const int column = step * p.depth_per_step;
  if constexpr (!kGathers) {
    ptx::tma_load(ring.data(), &in, full, {.column = column, .row = tile.row});
  }
  ptx::tma_load(ring.data() + kBoxBytes, &weights, full,
                {.column = column, .row = tile.weight_row});
  ptx::tma_load(ring.data() + 2 * kBoxBytes, &weights, full,
                {.column = column, .row = tile.weight_row + p.second_half});
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

/// In its tile, the first of a consumer warp's 16 rows.
__device__ inline int first_row_of_warp(int warpgroup) {
  return warpgroup * 64 + static_cast<int>(threadIdx.x) % 128 / 32 * 16;
}
/// In its tile, the first of the two rows that a thread holds of its warpgroup's 64; the other is 8
/// further on.
__device__ inline int row_of_thread(int warpgroup) {
  return first_row_of_warp(warpgroup) + static_cast<int>(threadIdx.x) % 32 / 4;
}

/// `Work::produce(in, weights, params, ring)`, of a warpgroup, brings what `Work::consume(params,
/// ring, warpgroup)` multiplies and stores; kFullArrivals say that a stage is there. With
/// kOverlaps it may begin before the kernel in front has ended.
template <typename Work>
__global__ __launch_bounds__(kGroupedThreads,
                             1) void grouped_kernel(const __grid_constant__ CUtensorMap in,
                                                    const __grid_constant__ CUtensorMap weights,
                                                    const GroupedParams p) {
  if constexpr (Work::kOverlaps) ptx::let_next_grid_begin();
  extern __shared__ uint8_t dynamic[];
  __shared__ uint64_t full[kStages], copied[kStages], empty[kStages];
  __shared__ uint64_t announced[kAnnouncedTiles];
  __shared__ StageFacts facts[kStages];
  __shared__ Tile tiles[kAnnouncedTiles];
  constexpr uint32_t kAtom = ptx::kSwizzleAtomBytes;
  const Ring ring{facts,
                  tiles,
                  ptx::shared_address(announced),
                  (ptx::shared_address(dynamic) + kAtom - 1) / kAtom * kAtom,
                  ptx::shared_address(full),
                  ptx::shared_address(copied),
                  ptx::shared_address(empty)};
  if (threadIdx.x == 0) {
    for (uint32_t i = 0; i < kStages; ++i) {
      ptx::mbarrier_init(ring.full + 8 * i, Work::kFullArrivals);
      ptx::mbarrier_init(ring.copied + 8 * i, kCopierThreads);
      ptx::mbarrier_init(ring.empty + 8 * i, kConsumerWarps);
    }
    for (uint32_t i = 0; i < kAnnouncedTiles; ++i) ptx::mbarrier_init(ring.announced + 8 * i, 1);
    ptx::mbarrier_init_fence();
  }
  __syncthreads();
  if constexpr (Work::kOverlaps) ptx::wait_for_previous_grid();
  const int warpgroup = static_cast<int>(threadIdx.x) / 128;
  if (warpgroup == 2) {
    ptx::release_registers<kProducerRegisters>();
    Work::produce(in, weights, p, ring);
  } else {
    ptx::claim_registers<kConsumerRegisters>();
    Work::consume(p, ring, warpgroup);
  }
}

template <typename Work>
void launch_grouped_kernel(const GroupedLaunch& launch) {
  constexpr const char* kWhat = "launching grouped_kernel";
  const auto kernel = grouped_kernel<Work>;
  const auto num_ctas = static_cast<unsigned>(launch.num_ctas);
  check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  kGroupedSharedBytes),
             "configuring grouped_kernel");
  if constexpr (Work::kOverlaps) {
    launch_overlapping(kernel, num_ctas, kGroupedThreads, kGroupedSharedBytes, launch.stream, kWhat,
                       launch.in, launch.weights, launch.params);
  } else {
    kernel<<<num_ctas, kGroupedThreads, kGroupedSharedBytes, launch.stream>>>(
        launch.in, launch.weights, launch.params);
    check_cuda(cudaGetLastError(), kWhat);
  }
}

}  // namespace fovea::cuda
