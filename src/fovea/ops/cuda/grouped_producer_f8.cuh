// How operands in f8e4m3 come into a grouped product's ring: a thread loads boxes and scales; of
// gathered rows two warps copy pieces, and one thread announces them.
#pragma once

#include "fovea/ops/cuda/grouped_kernel.cuh"

namespace fovea::cuda {

/// One thread: boxes, and scales but those of gathered rows.
template <bool kGathers>
__device__ inline void load_boxes(const CUtensorMap& in, const CUtensorMap& weights,
                                  const GroupedParams& p, Ring ring) {
  constexpr uint32_t kRowScaleBytes = kTileRows * 4;
  constexpr uint32_t kBytes = kGathers ? 2 * kBoxBytes : kStageBytes + kRowScaleBytes;
  const int end = num_tiles(p);
  for (int index = static_cast<int>(blockIdx.x); index < end;
       index += static_cast<int>(gridDim.x)) {
    const Tile tile = tile_at(p, index);
    const float* scales[2];
    float next_scales[2];
    // The last tile's second half may lie behind all matrices.
    const int last = p.num_experts * p.weight_rows / kTileRows - 1;
    for (int half = 0; half < 2; ++half) {
      const int block = (tile.weight_row + half * p.second_half) / kTileRows;
      scales[half] = p.weight_scales + int64_t{min(block, last)} * p.num_steps;
      next_scales[half] = *scales[half];
    }
    for (int step = 0; step < p.num_steps; ++step) {
      ptx::mbarrier_wait(ring.empty_barrier(), ring.parity ^ 1);
      StageFacts& facts = ring.facts();
      facts.tile = tile;
      for (int half = 0; half < 2; ++half) {
        facts.weight_scales[half] = next_scales[half];
        next_scales[half] = scales[half][min(step + 1, p.num_steps - 1)];
      }
      const uint32_t full = ring.full_barrier();
      ptx::mbarrier_arrive_expect(full, kBytes);
      ask_for_boxes<kGathers>(in, weights, p, tile, step, ring);
      if constexpr (!kGathers) {
        ptx::bulk_load(ptx::shared_address(facts.row_scales),
                       p.in_scales + step * p.in_scale_stride + tile.row, kRowScaleBytes, full);
      }
      ring.advance();
    }
  }
}

/// What one of kCopierThreads copies of gathered rows: of every sixteenth row every fourth piece of
/// 16 bytes, and the scales of two rows.
class Copier {
 public:
  __device__ Copier(const GroupedParams& p, const Tile& tile, int thread) : thread_(thread) {
    // Rows that nobody reads are copies of the last one.
    const auto source = [&](int row) { return p.in_rows[tile.row + min(row, tile.num_rows - 1)]; };
    // Rows of the two halves of 8 lanes differ in bit 2, so that their pieces lie in other banks.
    const int first_row = thread / 32 * 8 + thread / 4 % 2 * 4 + thread / 8 % 4;
    to_ = ptx::swizzle128(static_cast<uint32_t>(first_row * 128 + thread % 4 * 16));
#pragma unroll
    for (int i = 0; i < kPasses; ++i) from_[i] = source(first_row + i * kRowsPerPass);
#pragma unroll
    for (int i = 0; i < 2; ++i) row_scales_[i] = source(thread + i * kCopierThreads);
  }

  __device__ void copy(const GroupedParams& p, uint32_t box, StageFacts& facts, int step) const {
    const int at = step * static_cast<int>(ptx::kPanelRowBytes) + thread_ % 4 * 16;
    const int left = p.depth_bytes - at;
    const auto* in = static_cast<const uint8_t*>(p.in) + at;
#pragma unroll
    for (int i = 0; i < kPasses; ++i) {
      const uint32_t rows_at = box + static_cast<uint32_t>(i) * kRowsPerPass * ptx::kPanelRowBytes;
      const uint8_t* from = in + from_[i] * p.in_stride_bytes;
      ptx::copy_16(rows_at + to_, from, left > 0);
      ptx::copy_16(rows_at + (to_ ^ 64), from + 64, left > 64);
    }
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
  int thread_;
  int from_[kPasses];
  uint32_t to_;
  int row_scales_[2];
};

__device__ inline void copy_rows(const GroupedParams& p, Ring ring, int thread) {
  const int end = num_tiles(p);
  for (int index = static_cast<int>(blockIdx.x); index < end;
       index += static_cast<int>(gridDim.x)) {
    const Copier copier(p, tile_at(p, index), thread);
    for (int step = 0; step < p.num_steps; ++step) {
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
  const int end = num_tiles(p);
  for (int index = static_cast<int>(blockIdx.x); index < end;
       index += static_cast<int>(gridDim.x)) {
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
  if (thread == 0) {
    load_boxes<kGathers>(in, weights, p, ring);
  } else if (kGathers && thread == 32) {
    announce_rows(p, ring);
  } else if (kGathers && thread >= 128 - kCopierThreads) {
    copy_rows(p, ring, thread - (128 - kCopierThreads));
  }
}

}  // namespace fovea::cuda
