#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "fovea/selector/cuda/block_facts.h"
#include "fovea/tensor/cuda/check.h"
#include "fovea/tensor/cuda/ptx/math.h"

namespace fovea::cuda {
namespace {

constexpr int kPackWarps = 8;
constexpr int kSortThreads = 1024;
constexpr int kPrefixWarps = 8;

__device__ int complete_blocks(const SelectParams& params, int seq) {
  return static_cast<int>(params.kv_lens[seq] / params.block_size);
}

/// Statistics of one KV head of one sequence.
struct HeadStats {
  const SelectParams& params;
  const StatsSource& source;
  int seq, kv_head, num_blocks;

  __device__ int64_t entry(int block) const {
    return source.page_table != nullptr ? source.page_table[seq * source.page_table_stride + block]
                                        : source.block_offsets[seq] + block;
  }
  /// -1: there is no such block, or it is not finite.
  __device__ float radius(int block) const {
    if (block >= num_blocks) return -1.f;
    const int64_t at = entry(block);
    const bool is_finite = source.non_finite[at * source.non_finite_strides[0] +
                                             kv_head * source.non_finite_strides[1]] == 0;
    return is_finite
               ? source.radius[at * source.radius_strides[0] + kv_head * source.radius_strides[1]]
               : -1.f;
  }
};

/// Where a block lies in its tile: by radius, the widest first, and 16 places further on from tile
/// to tile, so that the wide ones fall to every warp in turn. Whole warp.
__device__ int place_by_radius(const HeadStats& stats, int block, float radius, int lane) {
  const int tile = block / kFactTileBlocks;
  int num_before = 0;
#pragma unroll
  for (int i = 0; i < kFactTileBlocks / 32; ++i) {
    const int other = tile * kFactTileBlocks + i * 32 + lane;
    const float other_radius = stats.radius(other);
    const bool is_before = other_radius > radius || (other_radius == radius && other < block);
    num_before += __popc(__ballot_sync(~0u, is_before));
  }
  return (num_before + tile * 16) % kFactTileBlocks;
}

/// One warp per (block, row of the block, KV head, sequence): copies the row to its tile, zeros
/// where there is no finite block. Row 0 carries radius and extent along.
template <typename Element, int kHeadDim>
__global__ __launch_bounds__(kPackWarps * 32) void pack_kernel(const SelectParams params,
                                                               const StatsSource source,
                                                               bool is_by_radius) {
  const int block = static_cast<int>(blockIdx.x) * kPackWarps + static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int rows_per_block = params.facts.rows_per_block;
  const int row = static_cast<int>(blockIdx.y) % rows_per_block;
  const int kv_head = static_cast<int>(blockIdx.y) / rows_per_block;
  const int seq = static_cast<int>(blockIdx.z);
  const HeadStats stats{params, source, seq, kv_head, complete_blocks(params, seq)};
  const int tile = block / kFactTileBlocks;
  if (tile * kFactTileBlocks >= stats.num_blocks) return;  // nobody reads this tile

  const float radius = stats.radius(block);
  const int place =
      is_by_radius ? place_by_radius(stats, block, radius, lane) : block % kFactTileBlocks;
  constexpr int kWords = kHeadDim / 64;  // 32-bit words of a lane
  uint32_t words[kWords] = {};
  float extent = 0.f;
  if (radius >= 0.f) {
    const int64_t entry = stats.entry(block);
    const auto load = [&](const void* base, const int64_t(&strides)[2], int64_t index,
                          uint32_t(&out)[kWords]) {
      const auto* from = reinterpret_cast<const uint32_t*>(static_cast<const Element*>(base) +
                                                           entry * strides[0] + index * strides[1]);
#pragma unroll
      for (int i = 0; i < kWords; ++i) out[i] = from[lane * kWords + i];
    };
    if (row == 0) {
      load(source.mean, source.mean_strides, kv_head, words);
      uint32_t centroid[kWords];
      load(source.centroid, source.centroid_strides, kv_head, centroid);
      float sum = 0;
#pragma unroll
      for (int i = 0; i < kWords; ++i) {
        const float2 pair = ptx::unpack2<Element>(centroid[i]);
        sum = fmaf(pair.x, pair.x, fmaf(pair.y, pair.y, sum));
      }
#pragma unroll
      for (int o = 16; o > 0; o /= 2) sum += __shfl_xor_sync(~0u, sum, o);
      extent = sqrtf(sum) + radius;
    } else {
      load(source.witness, source.witness_strides, kv_head * (rows_per_block - 1) + row - 1, words);
    }
  }
  const int64_t group = static_cast<int64_t>(seq) * params.num_kv_heads + kv_head;
  const int64_t tiles = params.facts.max_blocks / kFactTileBlocks;
  const int64_t to = ((group * tiles + tile) * rows_per_block + row) * kFactTileBlocks + place;
#pragma unroll
  for (int i = 0; i < kWords; ++i) {
    static_cast<uint32_t*>(params.facts.rows)[to * kHeadDim / 2 + lane * kWords + i] = words[i];
  }
  if (row == 0 && lane == 0) {
    const int64_t first = group * params.facts.max_blocks;
    params.facts.slots[first + tile * kFactTileBlocks + place] = {block, radius};
    params.facts.radius[first + block] = radius;
    params.facts.extent[first + block] = extent;
  }
}

template <typename Element>
void launch_pack(const SelectParams& params, const StatsSource& source, int head_dim,
                 bool is_by_radius, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>(params.facts.max_blocks / kPackWarps),
                  static_cast<unsigned>(params.num_kv_heads * params.facts.rows_per_block),
                  static_cast<unsigned>(params.batch_size));
  const auto kernel = head_dim == 64    ? pack_kernel<Element, 64>
                      : head_dim == 128 ? pack_kernel<Element, 128>
                                        : pack_kernel<Element, 256>;
  kernel<<<grid, kPackWarps * 32, 0, stream>>>(params, source, is_by_radius);
  check_cuda(cudaGetLastError(), "launching pack_kernel");
}

/// One CTA per (KV head, sequence): sorts the blocks by radius in shared memory (bitonic), those
/// that are not finite last.
__global__ __launch_bounds__(kSortThreads) void sort_radii_kernel(const SelectParams params,
                                                                  int power_of_two) {
  extern __shared__ unsigned long long keys[];
  const int seq = static_cast<int>(blockIdx.y);
  const int64_t group = static_cast<int64_t>(seq) * params.num_kv_heads + blockIdx.x;
  const float* radius = params.facts.radius + group * params.facts.max_blocks;
  const int num_blocks = complete_blocks(params, seq);
  const auto thread = static_cast<int>(threadIdx.x);
  for (int e = thread; e < power_of_two; e += kSortThreads) {
    const float r = e < num_blocks ? radius[e] : -1.f;
    const unsigned bits = r >= 0.f ? __float_as_uint(r) : 0xffffffffu;
    keys[e] = static_cast<unsigned long long>(bits) << 32 | static_cast<unsigned>(e);
  }
  for (int size = 2; size <= power_of_two; size *= 2) {
    for (int stride = size / 2; stride > 0; stride /= 2) {
      __syncthreads();
      for (int e = thread; e < power_of_two / 2; e += kSortThreads) {
        const int low = 2 * e - (e & (stride - 1));
        const int high = low + stride;
        const bool ascending = (low & size) == 0;
        const unsigned long long a = keys[low];
        const unsigned long long b = keys[high];
        if ((a > b) == ascending) {
          keys[low] = b;
          keys[high] = a;
        }
      }
    }
  }
  __syncthreads();
  for (int e = thread; e < num_blocks; e += kSortThreads) {
    params.facts.order[group * params.facts.max_blocks + e] = static_cast<int>(keys[e]);
  }
}

/// A quantile between two ranks of the sorted radii, as interpolated_quantile() takes it.
struct RankedQuantile {
  int low_rank = 0;
  double share = 0;
  float low = 0;
  float high = 0;

  __device__ void aim(float quantile, int count) {
    const double rank = static_cast<double>(quantile) * (count - 1);
    low_rank = static_cast<int>(rank);
    share = rank - low_rank;
  }
  __device__ void take(int rank, float value) {
    if (rank == low_rank) low = value;
    if (rank == low_rank + 1) high = value;
  }
  /// Only one lane has each value; radii are not negative.
  __device__ float result(int count) {
#pragma unroll
    for (int o = 16; o > 0; o /= 2) {
      low = fmaxf(low, __shfl_xor_sync(~0u, low, o));
      high = fmaxf(high, __shfl_xor_sync(~0u, high, o));
    }
    if (low_rank + 1 >= count) return low;
    return static_cast<float>(low + share * (static_cast<double>(high) - low));
  }
};

/// One warp per (query block, KV head, sequence): walks the sorted blocks, keeps those before the
/// query block, and picks out the ranks it wants.
__global__ __launch_bounds__(kPrefixWarps * 32) void prefix_kernel(const SelectParams params,
                                                                   const FactsSettings settings) {
  const int seq = static_cast<int>(blockIdx.z);
  const int num_blocks = complete_blocks(params, seq);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int i = num_blocks - (static_cast<int>(blockIdx.x) * kPrefixWarps +
                              static_cast<int>(threadIdx.x) / 32);  // long ones first
  if (i < 0) return;
  const int64_t group = static_cast<int64_t>(seq) * params.num_kv_heads + blockIdx.y;
  const float* radius = params.facts.radius + group * params.facts.max_blocks;
  const float* extent = params.facts.extent + group * params.facts.max_blocks;
  const int* order = params.facts.order + group * params.facts.max_blocks;

  const int population = settings.over_prompt ? num_blocks : i;
  PrefixFacts facts;
  float widest = -1.f;
  int count = 0;  // finite blocks of the population
  for (int b = lane; b < population; b += 32) {
    count += radius[b] >= 0.f;
    if (b < i) {
      facts.extent = fmaxf(facts.extent, extent[b]);
      if (radius[b] > widest) {
        widest = radius[b];
        facts.widest = b;
      }
    }
  }
#pragma unroll
  for (int o = 16; o > 0; o /= 2) {
    count += __shfl_xor_sync(~0u, count, o);
    facts.extent = fmaxf(facts.extent, __shfl_xor_sync(~0u, facts.extent, o));
    const float other_widest = __shfl_xor_sync(~0u, widest, o);
    const int other = __shfl_xor_sync(~0u, facts.widest, o);
    if (other_widest > widest || (other_widest == widest && other < facts.widest)) {
      widest = other_widest;
      facts.widest = other;
    }
  }
  if (settings.has_quantiles && count > 0) {
    RankedQuantile low, high, most;
    low.aim(settings.quantile_low, count);
    high.aim(settings.quantile_high, count);
    most.aim(settings.uplift_clamp, count);
    int seen = 0;
    for (int c = 0; seen < count; c += 32) {
      const int block = c + lane < num_blocks ? order[c + lane] : population;
      const bool is_in = block < population;
      const unsigned in = __ballot_sync(~0u, is_in);
      if (is_in) {
        const int rank = seen + __popc(in & ((1u << lane) - 1));
        low.take(rank, radius[block]);
        high.take(rank, radius[block]);
        most.take(rank, radius[block]);
      }
      seen += __popc(in);
    }
    facts.low = low.result(count);
    facts.high = high.result(count);
    const float clamp = most.result(count);
    facts.most = settings.uplift_clamp > 0 ? clamp : INFINITY;
  }
  if (lane == 0) params.facts.prefix[group * (params.facts.max_blocks + 1) + i] = facts;
}

}  // namespace

void launch_block_facts(const SelectParams& params, const StatsSource& source, int head_dim,
                        bool is_bf16, const FactsSettings& settings, cudaStream_t stream) {
  const BlockFactsView& facts = params.facts;
  const auto batch = static_cast<unsigned>(params.batch_size);
  const bool is_by_radius = settings.has_uplift;
  if (is_bf16) {
    launch_pack<__nv_bfloat16>(params, source, head_dim, is_by_radius, stream);
  } else {
    launch_pack<__half>(params, source, head_dim, is_by_radius, stream);
  }
  const auto kv_heads = static_cast<unsigned>(params.num_kv_heads);
  if (settings.has_quantiles) {
    int power_of_two = 2;
    while (power_of_two < facts.max_blocks) power_of_two *= 2;
    const int bytes = power_of_two * static_cast<int>(sizeof(unsigned long long));
    check_cuda(
        cudaFuncSetAttribute(sort_radii_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
        "configuring sort_radii_kernel");
    sort_radii_kernel<<<dim3(kv_heads, batch), kSortThreads, static_cast<size_t>(bytes), stream>>>(
        params, power_of_two);
    check_cuda(cudaGetLastError(), "launching sort_radii_kernel");
  }
  const dim3 prefix_grid(static_cast<unsigned>((facts.max_blocks + kPrefixWarps) / kPrefixWarps),
                         kv_heads, batch);
  prefix_kernel<<<prefix_grid, kPrefixWarps * 32, 0, stream>>>(params, settings);
  check_cuda(cudaGetLastError(), "launching prefix_kernel");
}

}  // namespace fovea::cuda
