// The pass over finished pages: one CTA per (block, KV head). Keys and values whose writer does not
// compute their statistics get them here.
#include "fovea/selector/block_stats.h"
#include "fovea/tensor/cuda/block_statistics.cuh"
#include "fovea/tensor/cuda/check.h"
#include "fovea/tensor/cuda/ptx/float8.h"

namespace fovea::cuda {
namespace {

template <typename Element>
struct StatsParams {
  const void* k;
  const void* v;
  int64_t block_stride, head_stride, row_stride;  // K and V have the same
  const int32_t* page_table;                      // of the sequence; null: contiguous
  const int64_t* kv_offset;                       // contiguous: row of the sequence's key 0
  int64_t first_block, block_offset;
  const float *k_scale, *v_scale;  // f8 only: [pages, heads], scale_stride apart
  int64_t scale_stride;
  StatsArrays<Element> to;
};

/// Means of a turned page of codes: a warp adds up a column's tokens.
template <typename Element, int kHeadDim, int kBlockSize>
__device__ void mean_of_turned(const uint8_t* block, int64_t column_stride, float scale,
                               Element* to) {
  constexpr int kTokensPerLane = 4;
  static_assert(kBlockSize == 32 * kTokensPerLane);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  for (int column = static_cast<int>(threadIdx.x) / 32; column < kHeadDim;
       column += kStatsThreads / 32) {
    float values[4];
    ptx::unpack_e4m3(
        *reinterpret_cast<const uint32_t*>(block + column * column_stride + lane * kTokensPerLane),
        values);
    float sum = values[0] + values[1] + values[2] + values[3];
#pragma unroll
    for (int o = 16; o > 0; o /= 2) sum += __shfl_xor_sync(~0u, sum, o);
    if (lane == 0) to[column] = rounded(sum * scale / kBlockSize, Element());
  }
}

/// Eight E4M3 codes as elements.
template <typename Element>
__device__ uint4 widened_codes(uint2 codes, float scale) {
  float low[4], high[4];
  ptx::unpack_e4m3(codes.x, low);
  ptx::unpack_e4m3(codes.y, high);
  return {ptx::pack2<Element>(low[0] * scale, low[1] * scale),
          ptx::pack2<Element>(low[2] * scale, low[3] * scale),
          ptx::pack2<Element>(high[0] * scale, high[1] * scale),
          ptx::pack2<Element>(high[2] * scale, high[3] * scale)};
}

/// Element: of the statistics, and of K and V where they are not E4M3 codes, whose V is turned.
template <typename Element, int kHeadDim, int kBlockSize, bool kIsF8>
__global__ __launch_bounds__(kStatsThreads) void block_stats_kernel(const StatsParams<Element> p) {
  using Rows = BlockRows<Element, kHeadDim, kBlockSize>;
  __shared__ typename Rows::Shared shared;
  const int64_t block = p.first_block + blockIdx.x;
  const int64_t head = blockIdx.y;
  const int64_t entry = p.page_table != nullptr ? p.page_table[block] : p.block_offset + block;
  const int64_t start =
      (p.page_table != nullptr ? entry * p.block_stride
                               : (*p.kv_offset + block * kBlockSize) * p.row_stride) +
      head * p.head_stride;
  Element* v_mean = p.to.v_mean.at(entry, head);
  if constexpr (kIsF8) {
    const int64_t scale = entry * p.scale_stride + head;
    mean_of_turned<Element, kHeadDim, kBlockSize>(static_cast<const uint8_t*>(p.v) + start,
                                                  p.row_stride, p.v_scale[scale], v_mean);
    const uint8_t* k = static_cast<const uint8_t*>(p.k) + start;
    const float k_scale = p.k_scale[scale];
    const Rows keys([&](int row, int column) {
      return widened_codes<Element>(
          __ldcs(reinterpret_cast<const uint2*>(k + row * p.row_stride + column)), k_scale);
    });
    keys.keys_statistics(shared, p.to, entry, head);
  } else {
    const auto rows_of = [&](const void* data) {
      const Element* rows = static_cast<const Element*>(data) + start;
      return Rows([&](int row, int column) {
        return __ldcs(reinterpret_cast<const uint4*>(rows + row * p.row_stride + column));
      });
    };
    rows_of(p.v).mean(shared, v_mean);
    rows_of(p.k).keys_statistics(shared, p.to, entry, head);
  }
}

}  // namespace

void launch_block_stats(const KvView& kv, int64_t seq, int64_t first_block, int64_t end_block,
                        int64_t block_offset, const BlockStatsView& stats, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>(end_block - first_block),
                  static_cast<unsigned>(kv.num_kv_heads()));
  const auto params = [&]<typename Element>(Element) {
    StatsParams<Element> p = {};
    p.k = kv.k.data;
    p.v = kv.v.data;
    p.block_stride = kv.k.stride[0];
    p.head_stride = kv.k.stride[1];
    p.row_stride = kv.k.stride[kv.is_paged() ? 2 : 0];
    if (kv.is_paged()) {
      p.page_table = kv.page_table + seq * kv.page_table_stride;
    } else {
      p.kv_offset = kv.kv_offsets + seq;
    }
    p.first_block = first_block;
    p.block_offset = block_offset;
    p.to = StatsArrays<Element>(stats);
    return p;
  };
  const auto launch_16_bit = [&]<typename Element>(Element element) {
    with_block_shape(kv.head_dim(), stats.block_size, [&]<int kHeadDim, int kBlockSize>() {
      block_stats_kernel<Element, kHeadDim, kBlockSize, false>
          <<<grid, kStatsThreads, 0, stream>>>(params(element));
    });
  };
  if (kv.k.dtype == DType::kF8E4M3) {
    auto p = params(__nv_bfloat16());
    p.k_scale = kv.k_scale.as<const float>();
    p.v_scale = kv.v_scale.as<const float>();
    p.scale_stride = kv.k_scale.stride[0];
    block_stats_kernel<__nv_bfloat16, 128, 128, true><<<grid, kStatsThreads, 0, stream>>>(p);
  } else if (kv.k.dtype == DType::kBF16) {
    launch_16_bit(__nv_bfloat16());
  } else {
    launch_16_bit(__half());
  }
  check_cuda(cudaGetLastError(), "launching block_stats_kernel");
}

}  // namespace fovea::cuda
