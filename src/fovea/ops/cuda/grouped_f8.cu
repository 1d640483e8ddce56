// Grouped products in f8e4m3 with a scale for each 128 columns of a row and each 128 x 128 block of
// a matrix: the tensor cores add up 128 columns, then the sums are scaled and added in f32. Half of
// a tile's columns at a time, so that both kinds of sums fit the registers; while one warpgroup
// scales, the other multiplies.
#include <type_traits>

#include "fovea/ops/cuda/gate.cuh"
#include "fovea/ops/cuda/grouped_kernel.cuh"
#include "fovea/tensor/cuda/ptx/wgmma.h"
#include "fovea/tensor/float8.h"

namespace fovea::cuda {
namespace {

/// Scales of one step: of a thread's two rows, and of a tile's two blocks of weights.
struct Scales {
  float rows[2], weights[2];
};

class ScaleReader {
 public:
  __device__ ScaleReader(const GroupedParams& p, const Tile& tile, int warpgroup)
      : rows_(p.in_scales + row_of_thread(tile, warpgroup)),
        stride_(p.scale_stride),
        weights_{block_row(p, tile.weight_row), block_row(p, tile.weight_row + p.second_half)} {}
  __device__ Scales at(int step) const {
    return {{rows_[step * stride_], rows_[step * stride_ + 8]},
            {weights_[0][step], weights_[1][step]}};
  }

 private:
  /// The last tile's second half may lie behind all matrices.
  static __device__ const float* block_row(const GroupedParams& p, int weight_row) {
    const int last = p.num_experts * p.weight_rows / 128 - 1;
    return p.weight_scales + int64_t{min(weight_row / 128, last)} * p.num_steps;
  }
  const float* rows_;
  int64_t stride_;
  const float* weights_[2];
};

/// Adds 128 columns of the depth to one half of a tile's sums.
template <int kHalf>
__device__ inline void add_half(float (&sums)[128], uint64_t a, uint64_t b, const Scales& scales,
                                std::integral_constant<int, kHalf>) {
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
  const float factors[2] = {scales.rows[0] * scales.weights[kHalf],
                            scales.rows[1] * scales.weights[kHalf]};
#pragma unroll
  for (int i = 0; i < 64; ++i) {
    float& sum = sums[kHalf * 64 + i];
    sum = fmaf(partial[i], factors[i / 2 % 2], sum);
  }
}

/// `Store::store(params, tile, warpgroup, sums)` writes a tile.
template <typename Store>
struct Consumer {
  static __device__ void consume(const GroupedParams& p, Ring ring, int warpgroup) {
    const int end = num_tiles(p);
    for (int index = static_cast<int>(blockIdx.x); index < end;
         index += static_cast<int>(gridDim.x)) {
      const Tile tile = tile_at(p, index);
      const ScaleReader reader(p, tile, warpgroup);
      Scales scales = reader.at(0);
      float sums[128] = {};
      for (int step = 0; step < p.num_steps; ++step) {
        const Scales next = reader.at(min(step + 1, p.num_steps - 1));
        ptx::mbarrier_wait(ring.full_barrier(), ring.parity);
        const uint64_t a =
            ptx::k_major_descriptor(ring.data() + static_cast<uint32_t>(warpgroup) * kBoxBytes / 2);
        const uint64_t b = ptx::k_major_descriptor(ring.data() + kBoxBytes);
        add_half(sums, a, b, scales, std::integral_constant<int, 0>());
        // Always true; it keeps ptxas from holding both halves' partial sums, which would not fit.
        if (p.columns > 0) {
          add_half(sums, a, ptx::advance(b, kBoxBytes), scales, std::integral_constant<int, 1>());
        }
        release_stage(ring.empty_barrier());
        ring.advance();
        scales = next;
      }
      Store::store(p, tile, warpgroup, sums);
    }
  }
};

template <bool kAdd>
struct StoreF32 {
  static __device__ void store(const GroupedParams& p, const Tile& tile, int warpgroup,
                               const float (&sums)[128]) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = row_of_thread(tile, warpgroup) + half * 8;
      if (row >= p.rows) continue;
      float* to =
          static_cast<float*>(p.out) + row * p.out_stride + tile.column + threadIdx.x % 4 * 2;
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
  static __device__ void store(const GroupedParams& p, const Tile& tile, int warpgroup,
                               float (&sums)[128]) {
    const int lane = static_cast<int>(threadIdx.x) % 4;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = row_of_thread(tile, warpgroup) + half * 8;
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
      if (row >= p.rows) continue;
      auto* to = reinterpret_cast<uint4*>(static_cast<uint8_t*>(p.out) + row * p.out_stride +
                                          tile.column + lane * 32);
#pragma unroll
      for (int part = 0; part < 2; ++part) {
        const uint32_t(&w)[4] = words[part];  // word of lane s: two columns of j, two of j + 1
        to[part] = {__byte_perm(w[0], w[1], 0x5410), __byte_perm(w[2], w[3], 0x5410),
                    __byte_perm(w[0], w[1], 0x7632), __byte_perm(w[2], w[3], 0x7632)};
      }
      if (lane == 0) p.out_scales[tile.column / 128 * p.scale_stride + row] = scale;
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
