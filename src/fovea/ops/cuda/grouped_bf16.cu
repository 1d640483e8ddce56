// Grouped products in bf16.
#include "fovea/ops/cuda/gate.cuh"
#include "fovea/ops/cuda/grouped_kernel.cuh"
#include "fovea/tensor/cuda/ptx/wgmma.h"

namespace fovea::cuda {
namespace {

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

/// `Store::store(params, tile, warpgroup, sums)` writes a tile.
template <typename Store>
struct Consumer {
  static constexpr bool kGathers = Store::kGathers, kHasScales = false;
  static __device__ void consume(const GroupedParams& p, Ring ring, int warpgroup) {
    const int end = num_tiles(p);
    for (int index = static_cast<int>(blockIdx.x); index < end;
         index += static_cast<int>(gridDim.x)) {
      ptx::mbarrier_wait(ring.full_barrier(), ring.parity);
      const Tile tile = ring.facts().tile;
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
  launch_grouped_kernel<Consumer<StoreBf16>>(launch);
}

void launch_grouped_bf16_gated(const GroupedLaunch& launch, GateFunction function) {
  with_gate_function(function, [&](auto constant) {
    launch_grouped_kernel<Consumer<StoreGated<decltype(constant)::value>>>(launch);
  });
}

}  // namespace fovea::cuda
