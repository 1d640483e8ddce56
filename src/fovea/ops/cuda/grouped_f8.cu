// Grouped products in f8e4m3 with a scale for each 128 columns of a row and each 128 x 128 block of
// a matrix: the tensor cores add up 128 columns, then the sums are scaled and added in f32. Half of
// a tile's columns at a time, so that both kinds of sums fit the registers; while one warpgroup
// scales, the other multiplies.
#include "fovea/ops/cuda/gate.cuh"
#include "fovea/ops/cuda/grouped_kernel.cuh"
#include "fovea/tensor/cuda/ptx/wgmma.h"
#include "fovea/tensor/float8.h"

namespace fovea::cuda {
namespace {

/// Adds 128 columns of the depth to one half of a tile's sums. `scales` are of a thread's two rows
/// times the weights'.
template <int kHalf>
__device__ inline void add_half(float (&sums)[128], uint64_t a, uint64_t b,
                                const float (&scales)[2]) {
  using Product = ptx::Wgmma<Float8E4M3, 128>;
  float partial[64];
  ptx::wgmma_fence();
  Product::first(partial, a, b);
#pragma unroll
  for (uint32_t i = 1; i < ptx::kPanelRowBytes / kInstructionBytes; ++i) {
    Product::add(partial, ptx::advance(a, i * kInstructionBytes),
                 ptx::advance(b, i * kInstructionBytes));
  }
  ptx::wgmma_commit();
  ptx::wgmma_wait<0>();
#pragma unroll
  for (int i = 0; i < 64; ++i) {
    float& sum = sums[kHalf * 64 + i];
    sum = fmaf(partial[i], scales[i / 2 % 2], sum);
  }
}

/// `Store::store(params, tile, warpgroup, sums)` writes a tile.
template <typename Store>
struct Consumer {
  static constexpr bool kGathers = Store::kGathers, kHasScales = true;
  static __device__ void consume(const GroupedParams& p, Ring ring, int warpgroup) {
    const int end = num_tiles(p);
    const int row = row_of_thread(warpgroup);
    for (int index = static_cast<int>(blockIdx.x); index < end;
         index += static_cast<int>(gridDim.x)) {
      ptx::mbarrier_wait(ring.full_barrier(), ring.parity);
      const Tile tile = ring.facts().tile;
      if (warpgroup * 64 >= tile.num_rows) {
        skip_tile(p, ring);
        continue;
      }
      float sums[128] = {};
      for (int step = 0; step < p.num_steps; ++step) {
        ptx::mbarrier_wait(ring.full_barrier(), ring.parity);
        if constexpr (kGathers) ptx::async_proxy_fence();
        const StageFacts& facts = ring.facts();
        const float rows[2] = {facts.row_scales[row], facts.row_scales[row + 8]};
        const float weights[2] = {facts.weight_scales[0], facts.weight_scales[1]};
        const uint64_t a =
            ptx::k_major_descriptor(ring.data() + static_cast<uint32_t>(warpgroup) * kBoxBytes / 2);
        const uint64_t b = ptx::k_major_descriptor(ring.data() + kBoxBytes);
        const float first[2] = {rows[0] * weights[0], rows[1] * weights[0]};
        add_half<0>(sums, a, b, first);
        // Always true; it keeps ptxas from holding both halves' partial sums, which would not fit.
        if (p.columns > 0) {
          const float second[2] = {rows[0] * weights[1], rows[1] * weights[1]};
          add_half<1>(sums, a, ptx::advance(b, kBoxBytes), second);
        }
        release_stage(ring.empty_barrier());
        ring.advance();
      }
      Store::store(p, tile, warpgroup, sums);
    }
  }
};

template <bool kAdd>
struct StoreF32 {
  static constexpr bool kGathers = false;
  static __device__ void store(const GroupedParams& p, const Tile& tile, int warpgroup,
                               const float (&sums)[128]) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = row_of_thread(warpgroup) + half * 8;
      if (row >= tile.num_rows) continue;
      float* to = static_cast<float*>(p.out) + (tile.row + row) * p.out_stride + tile.column +
                  threadIdx.x % 4 * 2;
#pragma unroll
      for (int group = 0; group < 32; ++group) {
        if (tile.column + group * 8 >= p.columns) continue;
        const float2 value = {sums[group * 4 + half * 2], sums[group * 4 + half * 2 + 1]};
        if constexpr (kAdd) {
          ptx::add_global(to + group * 8, value.x, value.y);
        } else {
          *reinterpret_cast<float2*>(to + group * 8) = value;
        }
      }
    }
  }
};

/// Gated values in f8, a scale for each row of the tile: its 128 columns are one block.
template <GateFunction kFunction>
struct StoreGatedF8 {
  static constexpr bool kGathers = true;
  static __device__ void store(const GroupedParams& p, const Tile& tile, int warpgroup,
                               float (&sums)[128]) {
    const int lane = static_cast<int>(threadIdx.x) % 4;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = row_of_thread(warpgroup) + half * 8;
      float largest = 0;
#pragma unroll
      for (int i = 0; i < 32; ++i) {
        const int at = i / 2 * 4 + half * 2 + i % 2;
        sums[at] = gated<kFunction>(sums[at], sums[at + 64]);
        largest = fmaxf(largest, fabsf(sums[at]));
      }
      largest = ptx::quad_max(largest);
      const float scale = largest > 0 ? largest / kMaxFloat8E4M3 : 1.0f;
      const float inverse = 1 / scale;
      // Columns 8 j + 2 lane and the next, j = 0 ... 15: lane t gets j = 4 t ... 4 t + 3 of all.
      uint32_t words[2][4];
#pragma unroll
      for (int part = 0; part < 2; ++part) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int at = (i * 4 + part * 2) * 4 + half * 2;
          words[part][i] = ptx::pack_e4m3(sums[at] * inverse, sums[at + 1] * inverse,
                                          sums[at + 4] * inverse, sums[at + 5] * inverse);
        }
        transpose_quad(words[part]);
      }
      if (row >= tile.num_rows) continue;
      auto* to = reinterpret_cast<uint4*>(
          static_cast<uint8_t*>(p.out) + (tile.row + row) * p.out_stride + tile.column + lane * 32);
#pragma unroll
      for (int part = 0; part < 2; ++part) {
        const uint32_t(&w)[4] = words[part];  // word of lane s: two columns of j, two of j + 1
        to[part] = {__byte_perm(w[0], w[1], 0x5410), __byte_perm(w[2], w[3], 0x5410),
                    __byte_perm(w[0], w[1], 0x7632), __byte_perm(w[2], w[3], 0x7632)};
      }
      if (lane == 0) p.out_scales[tile.column / 128 * p.out_scale_stride + tile.row + row] = scale;
    }
  }
};

}  // namespace

void launch_grouped_f8(const GroupedLaunch& launch, GroupedOutput output) {
  if (output == GroupedOutput::kBf16) return launch_grouped_kernel<Consumer<StoreBf16>>(launch);
  if (output == GroupedOutput::kF32)
    return launch_grouped_kernel<Consumer<StoreF32<false>>>(launch);
  launch_grouped_kernel<Consumer<StoreF32<true>>>(launch);
}

void launch_grouped_f8_gated(const GroupedLaunch& launch, GateFunction function) {
  if (function == GateFunction::kSilu) {
    launch_grouped_kernel<Consumer<StoreGatedF8<GateFunction::kSilu>>>(launch);
  } else {
    launch_grouped_kernel<Consumer<StoreGatedF8<GateFunction::kGeluTanh>>>(launch);
  }
}

}  // namespace fovea::cuda
