// How operands in f8e4m3 come into a grouped product's ring: a warp loads boxes and scales; of
// gathered rows two warps copy pieces, and one thread announces them.
#pragma once

#include "fovea/ops/cuda/grouped_kernel.cuh"

namespace fovea::cuda {

/// By who loads weights, and who announces rows.
constexpr int kGatheredArrivals = 2;

/// Scales of both halves of a tile's weights, each read a step before it is wanted.
class WeightScales {
 public:
  __device__ WeightScales(const GroupedParams& p, const Tile& tile) {
    // The last tile's second half may lie behind all matrices.
    const int last = p.num_experts * p.weight_rows / kTileRows - 1;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int block = (tile.weight_row + half * p.second_half) / kTileRows;
      from_[half] = p.weight_scales + int64_t{min(block, last)} * p.num_steps;
      next_[half] = *from_[half];
    }
  }
  /// Those of `step`; the steps in turn.
  __device__ void write(const GroupedParams& p, int step, float (&to)[2]) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      to[half] = next_[half];
      next_[half] = from_[half][min(step + 1, p.num_steps - 1)];
    }
  }

 private:
  const float* from_[2];
  float next_[2];
};

/// One warp's: takes tiles for its CTA, from those that all share or in turns, and announces them
/// to others who load. What comes from an atomic addition or from memory may differ from thread to
/// thread for all that the compiler knows; made uniform it stays out of the threads' registers.
class WarpTileTaker {
 public:
  __device__ explicit WarpTileTaker(const GroupedParams& p)
      : num_tiles_(ptx::uniform(num_tiles(p))) {}

  /// Asks for the next tile, so that take() need not wait.
  __device__ void ask(const GroupedParams& p) {
    const auto num_ctas = static_cast<int>(gridDim.x);
    if (p.next_tile == nullptr) {
      index_ += num_ctas;
    } else {
      index_ = threadIdx.x % 32 == 0 ? num_ctas + atomicAdd(p.next_tile, 1) : 0;
    }
  }
  /// None when its num_rows is 0.
  __device__ Tile take(const GroupedParams& p, const Ring& ring) {
    const int index = ptx::uniform(index_);
    Tile tile = {};
    if (index < num_tiles_) {
      tile = tile_at(p, index);
      tile = {ptx::uniform(tile.row), ptx::uniform(tile.column), ptx::uniform(tile.weight_row),
              ptx::uniform(tile.num_rows)};
    }
    const uint32_t slot = count_++ % kAnnouncedTiles;
    if (threadIdx.x % 32 == 0) {
      ring.tiles[slot] = tile;
      ptx::mbarrier_arrive(ring.announced + slot * 8);
    }
    return tile;
  }

 private:
  int num_tiles_;
  int index_ = static_cast<int>(blockIdx.x);
  uint32_t count_ = 0;
};

/// One warp: takes tiles, and loads boxes and scales, of weights only where rows are gathered.
template <bool kGathers>
__device__ inline void load_boxes(const CUtensorMap& in, const CUtensorMap& weights,
                                  const GroupedParams& p, Ring ring) {
  constexpr uint32_t kRowScaleBytes = kTileRows * 4;
  constexpr uint32_t kBytes = kGathers ? 2 * kBoxBytes : kStageBytes + kRowScaleBytes;
  const bool is_first = threadIdx.x % 32 == 0;
  WarpTileTaker tiles(p);
  Tile tile = tiles.take(p, ring);
  WeightScales scales(p, tile);
  while (tile.num_rows > 0) {
    tiles.ask(p);
    const auto load = [&](int step) {
      ptx::mbarrier_wait(ring.empty_barrier(), ring.parity ^ 1);
      if (is_first) {
        StageFacts& facts = ring.facts();
        facts.tile = tile;
        scales.write(p, step, facts.weight_scales);
        const uint32_t full = ring.full_barrier();
        ptx::mbarrier_arrive_expect(full, kBytes);
        ask_for_boxes<kGathers>(in, weights, p, tile, step, ring);
        if constexpr (!kGathers) {
          ptx::bulk_load(ptx::shared_address(facts.row_scales),
                         p.in_scales + step * p.in_scale_stride + tile.row, kRowScaleBytes, full);
        }
      }
      ring.advance();
    };
    load(0);
    const Tile next = tiles.take(p, ring);  // early: others look ahead
    for (int step = 1; step < p.num_steps; ++step) load(step);
    tile = next;
    scales = WeightScales(p, tile);
  }
  if (is_first) end_stages(ring, kGathers ? kGatheredArrivals : 1);
}

/// What one of kCopierThreads copies of a tile's gathered rows: of every sixteenth row every fourth
/// piece of 16 bytes, and the scales of two rows.
class Copier {
 public:
  __device__ Copier(const GroupedParams& p, const Tile& tile, int thread)
      : needs_all_(tile.num_rows > kTileRows / 2), thread_(thread) {
    // Rows that nobody reads are copies of the last one.
    const auto source = [&](int row) { return p.in_rows[tile.row + min(row, tile.num_rows - 1)]; };
    // Rows of the two halves of 8 lanes differ in bit 2, so that their pieces lie in other banks.
    const int first_row = thread / 32 * 8 + thread / 4 % 2 * 4 + thread / 8 % 4;
    to_ = ptx::swizzle128(static_cast<uint32_t>(first_row * 128 + thread % 4 * 16));
#pragma unroll
    for (int i = 0; i < kPasses; ++i) {
      from_[i] = static_cast<uint32_t>(source(first_row + i * kRowsPerPass)) *
                     static_cast<uint32_t>(p.in_stride_bytes) +
                 static_cast<uint32_t>(thread % 4 * 16);
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) row_scales_[i] = source(thread + i * kCopierThreads);
  }

  __device__ void copy(const GroupedParams& p, uint32_t box, StageFacts& facts, int step) const {
    const auto* in =
        static_cast<const uint8_t*>(p.in) + step * static_cast<int>(ptx::kPanelRowBytes);
    const uint32_t to = box + to_;
    copy_passes<0>(in, to);
    if (needs_all_) copy_passes<kPasses / 2>(in, to);
    const float* scales = p.in_scales + step * p.in_scale_stride;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      ptx::copy_4(ptx::shared_address(facts.row_scales + thread_ + i * kCopierThreads),
                  scales + row_scales_[i]);
    }
  }

 private:
  static constexpr int kRowsPerPass = kCopierThreads / 4;
  static constexpr int kPasses = kTileRows / kRowsPerPass;

  /// Half of them, `kFirst` and on.
  template <int kFirst>
  __device__ void copy_passes(const uint8_t* in, uint32_t to) const {
#pragma unroll
    for (int i = kFirst; i < kFirst + kPasses / 2; ++i) {
      const uint32_t rows_at = static_cast<uint32_t>(i) * kRowsPerPass * ptx::kPanelRowBytes;
      const uint8_t* from = in + from_[i];
      ptx::copy_16(to + rows_at, from);
      ptx::copy_16((to ^ 64) + rows_at, from + 64);
    }
  }

  bool needs_all_;
  int thread_;
  uint32_t from_[kPasses];
  uint32_t to_;
  int row_scales_[2];
};

__device__ inline void copy_rows(const GroupedParams& p, Ring ring, int thread) {
  TileReader tiles;
  for (Tile tile = tiles.next(ring); tile.num_rows > 0;) {
    const Copier copier(p, tile, thread);
    for (int step = 0; step < p.num_steps; ++step) {
      if (step + 1 == p.num_steps) {
        tile = tiles.next(ring);
        if (tile.num_rows > 0) ptx::prefetch_line(p.in_rows + tile.row + 2 * thread);
      }
      ptx::mbarrier_wait(ring.empty_barrier(), ring.parity ^ 1);
      copier.copy(p, ring.data(), ring.facts(), step);
      ptx::mbarrier_arrive_after_copies(ring.copied_barrier());
      ring.advance();
    }
  }
}

/// One thread: makes copied rows visible to the tensor cores. A fence waits for the thread's own
/// copies in flight, so those who copy cannot do it.
__device__ inline void announce_rows(const GroupedParams& p, Ring ring) {
  TileReader tiles;
  while (tiles.next(ring).num_rows > 0) {
    for (int step = 0; step < p.num_steps; ++step) {
      ptx::mbarrier_wait(ring.copied_barrier(), ring.parity);
      ptx::async_proxy_fence();
      ptx::mbarrier_arrive(ring.full_barrier());
      ring.advance();
    }
  }
}

/// By the producing warpgroup.
template <bool kGathers>
__device__ inline void produce_f8(const CUtensorMap& in, const CUtensorMap& weights,
                                  const GroupedParams& p, const Ring& ring) {
  const int thread = static_cast<int>(threadIdx.x) % 128;
  if (thread < 32) {
    load_boxes<kGathers>(in, weights, p, ring);
  } else if (kGathers && thread == 32) {
    announce_rows(p, ring);
  } else if (kGathers && thread >= 128 - kCopierThreads) {
    copy_rows(p, ring, thread - (128 - kCopierThreads));
  }
}

}  // namespace fovea::cuda
