// Grouped products in f8e4m3 with a scale for each 128 columns of a row and each 128 x 128 block of
// a matrix: the tensor cores add up 128 columns, then the sums are scaled and added in f32. Half of
// a tile's columns at a time, so that both kinds of sums fit the registers; while one warpgroup
// scales, the other multiplies.
#include "fovea/ops/cuda/gate.cuh"
#include "fovea/ops/cuda/grouped_producer_f8.cuh"
#include "fovea/tensor/cuda/ptx/wgmma.h"
#include "fovea/tensor/float8.h"

namespace fovea::cuda {
namespace {

/// Adds 128 columns of the depth to one half of a tile's sums, or, at `kIsFirst`, makes them.
/// `scales` are of a thread's two rows times the weights'. `meanwhile` runs beside the product and
/// may read these sums; `afterwards` when the operands have been read.
template <int kHalf, bool kIsFirst, typename Meanwhile, typename Afterwards>
__device__ inline void add_half(float (&sums)[128], uint64_t a, uint64_t b,
                                const float (&scales)[2], Meanwhile meanwhile,
                                Afterwards afterwards) {
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
  meanwhile();
  ptx::wgmma_wait<0>();
  afterwards();
#pragma unroll
  for (int i = 0; i < 64; ++i) {
    float& sum = sums[kHalf * 64 + i];
    const float scale = scales[i / 2 % 2];
    sum = kIsFirst ? partial[i] * scale : fmaf(partial[i], scale, sum);
  }
}

/// `Store::store<kHalf>(params, tile, warpgroup, turning, sums)` is done with half of a thread's
/// sums, those of 128 of the 256 rows of weights; the second after the first.
template <typename Store>
struct Work {
  static constexpr bool kGathers = Store::kGathers, kOverlaps = true;
  static constexpr int kFullArrivals = kGathers ? kGatheredArrivals : 1;

  static __device__ void produce(const CUtensorMap& in, const CUtensorMap& weights,
                                 const GroupedParams& p, const Ring& ring) {
    produce_f8<kGathers>(in, weights, p, ring);
  }

  static __device__ void consume(const GroupedParams& p, Ring ring, int warpgroup) {
    // Now the compiler knows that it is the same in all threads of a warp.
    warpgroup = static_cast<int>(__reduce_or_sync(~0u, static_cast<unsigned>(warpgroup)));
    float sums[128];
    Tile unstored = {};  // of whom these sums are
    while (true) {
      ptx::mbarrier_wait(ring.full_barrier(), ring.parity);
      const Tile tile = ring.facts().tile;
      if (ptx::uniform(tile.num_rows) == 0) break;
      if (warpgroup * 64 >= tile.num_rows) {
        skip_tile(p, ring);
        continue;
      }
      multiply_stage<true>(p, ring, warpgroup, sums, unstored);
      unstored = tile;
      for (int step = 1; step < p.num_steps; ++step) {
        ptx::mbarrier_wait(ring.full_barrier(), ring.parity);
        multiply_stage<false>(p, ring, warpgroup, sums, unstored);
      }
    }
    if (unstored.num_rows > 0) {
      Store::template store<0>(p, unstored, warpgroup, ring.turning(), sums);
      Store::template store<1>(p, unstored, warpgroup, ring.turning(), sums);
    }
  }

 private:
  /// `kIsFirst`: of a tile; stores the one before beside the products.
  template <bool kIsFirst>
  static __device__ void multiply_stage(const GroupedParams& p, Ring& ring, int warpgroup,
                                        float (&sums)[128], const Tile& unstored) {
    const StageFacts& facts = ring.facts();
    const int row = row_of_thread(warpgroup);
    const float rows[2] = {facts.row_scales[row], facts.row_scales[row + 8]};
    const float weights[2] = {facts.weight_scales[0], facts.weight_scales[1]};
    const uint64_t a =
        ptx::k_major_descriptor(ring.data() + static_cast<uint32_t>(warpgroup) * kBoxBytes / 2);
    const uint64_t b = ptx::k_major_descriptor(ring.data() + kBoxBytes);
    const float first[2] = {rows[0] * weights[0], rows[1] * weights[0]};
    add_half<0, kIsFirst>(
        sums, a, b, first,
        [&] {
          if (kIsFirst && unstored.num_rows > 0) {
            Store::template store<0>(p, unstored, warpgroup, ring.turning(), sums);
          }
        },
        [] {});
    // Always true; it keeps ptxas from holding both halves' partial sums, which would not fit.
    if (p.columns > 0) {
      const float second[2] = {rows[0] * weights[1], rows[1] * weights[1]};
      add_half<1, kIsFirst>(
          sums, a, ptx::advance(b, kBoxBytes), second,
          [&] {
            if (kIsFirst && unstored.num_rows > 0) {
              Store::template store<1>(p, unstored, warpgroup, ring.turning(), sums);
            }
          },
          [&] { release_stage(ring.empty_barrier()); });
    }
    ring.advance();
  }
};

/// Writes the 16 rows of 128 bytes that a warp has turned, whole lines at a time: `write(offset,
/// piece)` of 16 bytes, for elements of `out` from `offset` on. `column` is the lane's.
template <class Write>
__device__ inline void write_turned(const GroupedParams& p, const Tile& tile, int warp_row,
                                    int column, uint32_t turning, Write&& write) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int row = i * 4 + lane / 8;
    const uint4 piece = ptx::load_shared16(
        turning + ptx::swizzle128(static_cast<uint32_t>(row * 128 + lane % 8 * 16)));
    if (warp_row + row >= tile.num_rows || column >= p.columns) continue;
    write((tile.row + warp_row + row) * p.out_stride + column, piece);
  }
}

/// The sums as they are, rounded to bf16. A warp turns 16 rows x 64 columns at a time, so that it
/// writes whole lines.
struct StoreBf16 {
  static constexpr bool kGathers = false;
  template <int kHalf>
  static __device__ void store(const GroupedParams& p, const Tile& tile, int warpgroup,
                               uint32_t turning, const float (&sums)[128]) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int warp_row = first_row_of_warp(warpgroup);
    // Lanes give the places of rows of four matrices of 8 x 8: two below each other, twice.
    const auto to_line = static_cast<uint32_t>(lane % 16 * 128 + lane / 16 * 16);
#pragma unroll
    for (int part = 0; part < 2; ++part) {
#pragma unroll
      for (int pair = 0; pair < 4; ++pair) {
        uint32_t words[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int at = kHalf * 64 + part * 32 + pair * 8 + i * 2;
          words[i] = ptx::pack2<__nv_bfloat16>(sums[at], sums[at + 1]);
        }
        const uint32_t place = to_line + static_cast<uint32_t>(pair) * 32;
        ptx::store_matrices(turning + ptx::swizzle128(place), words);
      }
      __syncwarp();
      const int column = tile.column + kHalf * 128 + part * 64 + lane % 8 * 8;
      write_turned(p, tile, warp_row, column, turning, [&](int64_t offset, const uint4& piece) {
        *reinterpret_cast<uint4*>(static_cast<__nv_bfloat16*>(p.out) + offset) = piece;
      });
      __syncwarp();
    }
  }
};

/// Turns 16 rows x 32 columns of a warp at a time, so that whole lines are written: of pieces of
/// lines the L2 cache takes, and adds, far fewer.
template <bool kAdd>
struct StoreF32 {
  static constexpr bool kGathers = false;
  template <int kHalf>
  static __device__ void store(const GroupedParams& p, const Tile& tile, int warpgroup,
                               uint32_t turning, const float (&sums)[128]) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int warp_row = first_row_of_warp(warpgroup);
    const auto from = static_cast<uint32_t>(lane / 4 * 128 + lane % 4 * 8);
#pragma unroll
    for (int part = 0; part < 4; ++part) {
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const int at = kHalf * 64 + part * 16 + i * 2;
        const uint32_t offset = from + static_cast<uint32_t>(i % 2 * 8 * 128 + i / 2 * 32);
        ptx::store_shared8(turning + ptx::swizzle128(offset), sums[at], sums[at + 1]);
      }
      __syncwarp();
      const int column = tile.column + kHalf * 128 + part * 32 + lane % 8 * 4;
      write_turned(p, tile, warp_row, column, turning, [&](int64_t offset, const uint4& piece) {
        float* to = static_cast<float*>(p.out) + offset;
        const float4 values = {__uint_as_float(piece.x), __uint_as_float(piece.y),
                               __uint_as_float(piece.z), __uint_as_float(piece.w)};
        if constexpr (kAdd) {
          ptx::add_global(to, values);
        } else {
          *reinterpret_cast<float4*>(to) = values;
        }
      });
      __syncwarp();
    }
  }
};

/// Gated values in f8, a scale for each row of the tile: its 128 columns are one block.
template <GateFunction kFunction>
struct StoreGatedF8 {
  static constexpr bool kGathers = true;
  template <int kHalf>
  static __device__ void store(const GroupedParams& p, const Tile& tile, int warpgroup,
                               uint32_t /*turning*/, float (&sums)[128]) {
    if constexpr (kHalf == 0) {
#pragma unroll
      for (int i = 0; i < 64; ++i) sums[64 + i] = gated<kFunction, true>(sums[i], sums[64 + i]);
    } else {
      round(p, tile, warpgroup, sums);
    }
  }

 private:
  static __device__ void round(const GroupedParams& p, const Tile& tile, int warpgroup,
                               const float (&sums)[128]) {
    const int lane = static_cast<int>(threadIdx.x) % 4;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = row_of_thread(warpgroup) + half * 8;
      float largest = 0;
#pragma unroll
      for (int i = 0; i < 32; ++i) {
        largest = fmaxf(largest, fabsf(sums[64 + i / 2 * 4 + half * 2 + i % 2]));
      }
      largest = ptx::quad_max(largest);
      // Rows of less than that become zeros: the reciprocal below would be infinite.
      const float scale = largest > 1e-30f ? largest * (1 / kMaxFloat8E4M3) : 1.0f;
      const float inverse = __fdividef(1.0f, scale);
      // Columns 8 j + 2 lane and the next, j = 0 ... 15: lane t gets j = 4 t ... 4 t + 3 of all.
      uint32_t words[2][4];
#pragma unroll
      for (int part = 0; part < 2; ++part) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int at = 64 + (i * 4 + part * 2) * 4 + half * 2;
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
  if (output == GroupedOutput::kBf16) return launch_grouped_kernel<Work<StoreBf16>>(launch);
  if (output == GroupedOutput::kF32) return launch_grouped_kernel<Work<StoreF32<false>>>(launch);
  launch_grouped_kernel<Work<StoreF32<true>>>(launch);
}

void launch_grouped_f8_gated(const GroupedLaunch& launch, GateFunction function) {
  if (function == GateFunction::kSilu) {
    launch_grouped_kernel<Work<StoreGatedF8<GateFunction::kSilu>>>(launch);
  } else {
    launch_grouped_kernel<Work<StoreGatedF8<GateFunction::kGeluTanh>>>(launch);
  }
}

}  // namespace fovea::cuda
