#include <cuda_bf16.h>

#include "fovea/attention/cuda/check.h"
#include "fovea/attention/cuda/ptx/math.h"
#include "fovea/selector/cuda/block_facts.h"

namespace fovea::cuda {
namespace {

constexpr int kPackWarps = 8;
constexpr int kSortThreads = 1024;
constexpr int kPrefixWarps = 8;

__device__ int complete_blocks(const SelectParams& params, int seq) {
  return static_cast<int>(params.kv_lens[seq] / kSelectBlockSize);
}

/// One warp per (block, row of the block, KV head, sequence): copies the row to its tile, zeros
/// where there is no finite block. Row 0 carries the radius and the extent along.
template <int kHeadDim>
__global__ __launch_bounds__(kPackWarps * 32) void pack_kernel(const SelectParams params,
                                                               const StatsSource source) {
  const int block = static_cast<int>(blockIdx.x) * kPackWarps + static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int row = static_cast<int>(blockIdx.y) % params.facts.rows_per_block;
  const int kv_head = static_cast<int>(blockIdx.y) / params.facts.rows_per_block;
  const int seq = static_cast<int>(blockIdx.z);
  const int num_blocks = complete_blocks(params, seq);
  const int tiles = params.facts.max_blocks / kFactTileBlocks;
  if (block / kFactTileBlocks * kFactTileBlocks >= num_blocks) return;  // nobody reads this tile

  const int64_t group = static_cast<int64_t>(seq) * params.num_kv_heads + kv_head;
  const int64_t tile =
      (group * tiles + block / kFactTileBlocks) * params.facts.rows_per_block + row;
  auto* to = static_cast<__nv_bfloat16*>(params.facts.rows) +
             (tile * kFactTileBlocks + block % kFactTileBlocks) * kHeadDim;
  constexpr int kWords = kHeadDim / 64;  // 32-bit words of a lane
  uint32_t words[kWords] = {};
  float radius = -1.f;
  float extent = 0.f;
  if (block < num_blocks) {
    const int64_t entry = source.page_table != nullptr
                              ? source.page_table[seq * source.page_table_stride + block]
                              : source.block_offsets[seq] + block;
    const bool finite = source.non_finite[entry * source.non_finite_strides[0] +
                                          kv_head * source.non_finite_strides[1]] == 0;
    if (finite) {
      const auto load = [&](const void* base, const int64_t(&strides)[2], int64_t index,
                            uint32_t(&out)[kWords]) {
        const auto* from = reinterpret_cast<const uint32_t*>(
            static_cast<const __nv_bfloat16*>(base) + entry * strides[0] + index * strides[1]);
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
          const float2 pair = ptx::unpack2<__nv_bfloat16>(centroid[i]);
          sum = fmaf(pair.x, pair.x, fmaf(pair.y, pair.y, sum));
        }
#pragma unroll
        for (int o = 16; o > 0; o /= 2) sum += __shfl_xor_sync(~0u, sum, o);
        radius =
            source.radius[entry * source.radius_strides[0] + kv_head * source.radius_strides[1]];
        extent = sqrtf(sum) + radius;
      } else {
        load(source.witness, source.witness_strides,
             kv_head * (params.facts.rows_per_block - 1) + row - 1, words);
      }
    }
  }
#pragma unroll
  for (int i = 0; i < kWords; ++i) reinterpret_cast<uint32_t*>(to)[lane * kWords + i] = words[i];
  if (row == 0 && lane == 0) {
    params.facts.radius[group * params.facts.max_blocks + block] = radius;
    params.facts.extent[group * params.facts.max_blocks + block] = extent;
  }
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
                                                                   const FactsSettings settings,
                                                                   bool needs_order) {
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
  if (needs_order && count > 0) {
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
                        const FactsSettings& settings, bool needs_order, cudaStream_t stream) {
  const BlockFactsView& facts = params.facts;
  const auto batch = static_cast<unsigned>(params.batch_size);
  const dim3 pack_grid(static_cast<unsigned>(facts.max_blocks / kPackWarps),
                       static_cast<unsigned>(params.num_kv_heads * facts.rows_per_block), batch);
  switch (head_dim) {
    case 64:
      pack_kernel<64><<<pack_grid, kPackWarps * 32, 0, stream>>>(params, source);
      break;
    case 128:
      pack_kernel<128><<<pack_grid, kPackWarps * 32, 0, stream>>>(params, source);
      break;
    default:
      pack_kernel<256><<<pack_grid, kPackWarps * 32, 0, stream>>>(params, source);
      break;
  }
  check_cuda(cudaGetLastError(), "launching pack_kernel");
  const auto kv_heads = static_cast<unsigned>(params.num_kv_heads);
  if (needs_order) {
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
  prefix_kernel<<<prefix_grid, kPrefixWarps * 32, 0, stream>>>(params, settings, needs_order);
  check_cuda(cudaGetLastError(), "launching prefix_kernel");
}

}  // namespace fovea::cuda
