// Rows of many experts times their matrices in one launch. One persistent CTA per SM walks output
// tiles of 128 rows x 256 rows of weights: a thread streams both operands by TMA into a ring of
// stages, two warpgroups multiply 64 rows each. A gated product takes its 256 rows of weights from
// two places, 128 gates and the 128 values they open for: a thread then holds both of a pair.
#include "fovea/ops/cuda/gate.cuh"
#include "fovea/ops/cuda/grouped_product.h"
#include "fovea/tensor/cuda/check.h"
#include "fovea/tensor/cuda/ptx/math.h"
#include "fovea/tensor/cuda/ptx/mbarrier.h"
#include "fovea/tensor/cuda/ptx/swizzle128.h"
#include "fovea/tensor/cuda/ptx/tma.h"
#include "fovea/tensor/cuda/ptx/wgmma.h"

namespace fovea::cuda {
namespace {

constexpr int kThreads = 3 * 128;
constexpr int kConsumerWarps = 8;
constexpr int kStages = 4;
constexpr int kTileRows = 128;
constexpr int kDepth = 64;  // of a stage
constexpr uint32_t kRowsBytes = kTileRows * kDepth * 2;
constexpr uint32_t kStageBytes = 3 * kRowsBytes;  // rows, and two boxes of weights
constexpr uint32_t kSharedBytes = kStages * kStageBytes + ptx::kSwizzleAtomBytes;

struct Plain {
  static constexpr bool kIsGated = false;
};
template <GateFunction kFunction_>
struct Gated {
  static constexpr bool kIsGated = true;
  static constexpr GateFunction kFunction = kFunction_;
};

/// Where a stage lies, and the barriers around it; shared addresses.
struct Ring {
  uint32_t stages, full, empty;
  int stage = 0;
  uint32_t parity = 0;

  __device__ uint32_t data() const { return stages + static_cast<uint32_t>(stage) * kStageBytes; }
  __device__ uint32_t full_barrier() const { return full + static_cast<uint32_t>(stage) * 8; }
  __device__ uint32_t empty_barrier() const { return empty + static_cast<uint32_t>(stage) * 8; }
  __device__ void advance() {
    if (++stage < kStages) return;
    stage = 0;
    parity ^= 1;
  }
};

struct Tile {
  int row, column, weight_row;
};

/// Tiles of an expert run along its rows first: those at work at one time share their weights.
__device__ inline Tile tile_at(const GroupedParams& p, int index) {
  const int expert = p.expert_of_tile[index / p.column_tiles];
  const int first = p.first_tile[expert];
  const int row_tiles = p.first_tile[expert + 1] - first;
  const int local = index - first * p.column_tiles;
  const int column = local / row_tiles * p.columns_per_tile;
  return {(first + local % row_tiles) * kTileRows, column, expert * p.weight_rows + column};
}

__device__ void produce(const CUtensorMap& in, const CUtensorMap& weights, const GroupedParams& p,
                        Ring ring) {
  const int num_tiles = p.first_tile[p.num_experts] * p.column_tiles;
  for (int index = static_cast<int>(blockIdx.x); index < num_tiles;
       index += static_cast<int>(gridDim.x)) {
    const Tile tile = tile_at(p, index);
    for (int step = 0; step < p.num_steps; ++step) {
      ptx::mbarrier_wait(ring.empty_barrier(), ring.parity ^ 1);
      const uint32_t full = ring.full_barrier();
      ptx::mbarrier_arrive_expect(full, kStageBytes);
      const int column = step * kDepth;
      ptx::tma_load(ring.data(), &in, full, {.column = column, .row = tile.row});
      ptx::tma_load(ring.data() + kRowsBytes, &weights, full,
                    {.column = column, .row = tile.weight_row});
      ptx::tma_load(ring.data() + 2 * kRowsBytes, &weights, full,
                    {.column = column, .row = tile.weight_row + p.second_half});
      ring.advance();
    }
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

/// Rounds the warpgroup's 64 rows and stores them, 16 bytes a thread.
template <typename Epilogue>
__device__ inline void store_tile(const float (&sums)[128], const GroupedParams& p,
                                  const Tile& tile, int warpgroup) {
  constexpr int kGroups = Epilogue::kIsGated ? 4 : 8;  // of 32 columns
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int row =
      tile.row + warpgroup * 64 + static_cast<int>(threadIdx.x) % 128 / 32 * 16 + lane / 4;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    __nv_bfloat16* to = p.out + int64_t{row + half * 8} * p.columns + tile.column;
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
      uint32_t words[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int at = (group * 4 + i) * 4 + half * 2;
        if constexpr (Epilogue::kIsGated) {
          words[i] =
              ptx::pack2<__nv_bfloat16>(gated<Epilogue::kFunction>(sums[at], sums[at + 64]),
                                        gated<Epilogue::kFunction>(sums[at + 1], sums[at + 65]));
        } else {
          words[i] = ptx::pack2<__nv_bfloat16>(sums[at], sums[at + 1]);
        }
      }
      transpose_quad(words);
      const int column = group * 32 + lane % 4 * 8;
      if (tile.column + column < p.columns) {
        *reinterpret_cast<uint4*>(to + column) = {words[0], words[1], words[2], words[3]};
      }
    }
  }
}

/// Waits for the next stage and asks for its products; gives the barrier that releases it.
template <bool kIsFirst>
__device__ inline uint32_t multiply_stage(float (&sums)[128], Ring& ring, int warpgroup) {
  using Product = ptx::Wgmma<__nv_bfloat16, 256>;
  constexpr uint32_t kStepBytes = 32;  // 16 columns along the depth
  ptx::mbarrier_wait(ring.full_barrier(), ring.parity);
  const uint64_t a =
      ptx::k_major_descriptor(ring.data() + static_cast<uint32_t>(warpgroup) * kRowsBytes / 2);
  const uint64_t b = ptx::k_major_descriptor(ring.data() + kRowsBytes);
  ptx::wgmma_fence();
  if constexpr (kIsFirst) {
    Product::first(sums, a, b);
  } else {
    Product::add(sums, a, b);
  }
#pragma unroll
  for (uint32_t i = 1; i < kDepth / 16; ++i) {
    Product::add(sums, ptx::advance(a, i * kStepBytes), ptx::advance(b, i * kStepBytes));
  }
  ptx::wgmma_commit();
  const uint32_t release = ring.empty_barrier();
  ring.advance();
  return release;
}

template <typename Epilogue>
__device__ void consume(const GroupedParams& p, Ring ring, int warpgroup) {
  const int num_tiles = p.first_tile[p.num_experts] * p.column_tiles;
  const auto release = [](uint32_t barrier) {
    if (threadIdx.x % 32 == 0) ptx::mbarrier_arrive(barrier);
  };
  for (int index = static_cast<int>(blockIdx.x); index < num_tiles;
       index += static_cast<int>(gridDim.x)) {
    float sums[128];
    uint32_t held = multiply_stage<true>(sums, ring, warpgroup);
    for (int step = 1; step < p.num_steps; ++step) {
      const uint32_t next = multiply_stage<false>(sums, ring, warpgroup);
      ptx::wgmma_wait<1>();
      release(held);
      held = next;
    }
    ptx::wgmma_wait<0>();
    release(held);
    store_tile<Epilogue>(sums, p, tile_at(p, index), warpgroup);
  }
}

template <typename Epilogue>
__global__ __launch_bounds__(kThreads, 1) void grouped_product_kernel(
    const __grid_constant__ CUtensorMap in, const __grid_constant__ CUtensorMap weights,
    const GroupedParams p) {
  extern __shared__ uint8_t dynamic[];
  __shared__ uint64_t full[kStages], empty[kStages];
  const uint32_t atom = ptx::kSwizzleAtomBytes;
  const Ring ring{(ptx::shared_address(dynamic) + atom - 1) / atom * atom,
                  ptx::shared_address(full), ptx::shared_address(empty)};
  if (threadIdx.x == 0) {
    for (uint32_t i = 0; i < kStages; ++i) {
      ptx::mbarrier_init(ring.full + 8 * i, 1);
      ptx::mbarrier_init(ring.empty + 8 * i, kConsumerWarps);
    }
    ptx::mbarrier_init_fence();
  }
  __syncthreads();
  const int warpgroup = static_cast<int>(threadIdx.x) / 128;
  if (warpgroup == 2) {
    ptx::release_registers<40>();
    if (threadIdx.x == 2 * 128) produce(in, weights, p, ring);
  } else {
    ptx::claim_registers<232>();
    consume<Epilogue>(p, ring, warpgroup);
  }
}

template <typename Epilogue>
void launch(const CUtensorMap& in, const CUtensorMap& weights, const GroupedParams& params,
            int num_ctas, cudaStream_t stream) {
  check_cuda(cudaFuncSetAttribute(grouped_product_kernel<Epilogue>,
                                  cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes),
             "configuring grouped_product_kernel");
  grouped_product_kernel<Epilogue>
      <<<static_cast<unsigned>(num_ctas), kThreads, kSharedBytes, stream>>>(in, weights, params);
  check_cuda(cudaGetLastError(), "launching grouped_product_kernel");
}

}  // namespace

void launch_grouped_kernel(const CUtensorMap& in, const CUtensorMap& weights,
                           const GroupedParams& params, bool is_gated, GateFunction function,
                           int num_ctas, cudaStream_t stream) {
  if (!is_gated) return launch<Plain>(in, weights, params, num_ctas, stream);
  if (function == GateFunction::kSilu) {
    return launch<Gated<GateFunction::kSilu>>(in, weights, params, num_ctas, stream);
  }
  launch<Gated<GateFunction::kGeluTanh>>(in, weights, params, num_ctas, stream);
}

}  // namespace fovea::cuda
