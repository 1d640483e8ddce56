// One CTA per (block, KV head), whose threads hold the block's keys in registers, 8 columns each.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "fovea/selector/block_stats.h"
#include "fovea/tensor/cuda/check.h"
#include "fovea/tensor/cuda/ptx/float8.h"
#include "fovea/tensor/cuda/ptx/math.h"

namespace fovea::cuda {
namespace {

constexpr int kStatsThreads = 256;

struct StatsParams {
  const void* k;
  const void* v;
  int64_t block_stride, head_stride, row_stride;  // K and V have the same
  const int32_t* page_table;                      // of the sequence; null: contiguous
  const int64_t* kv_offset;                       // contiguous: row of the sequence's key 0
  int64_t first_block, block_offset;
  void* centroid;
  void* v_mean;
  void* witness;
  void* rest_mean;
  const float *k_scale, *v_scale;  // f8 only: [pages, heads], scale_stride apart
  int64_t scale_stride;
  float* radius;
  int32_t* non_finite;
  int64_t centroid_strides[2], v_mean_strides[2], witness_strides[2], rest_strides[2];
  int64_t radius_strides[2], non_finite_strides[2];
  int num_witnesses;
};

/// Element: of the statistics, and of K and V where they are not E4M3 codes, whose V is turned.
template <typename Element_, int kHeadDim_, int kBlockSize_, bool kIsF8_ = false>
struct StatsTraits {
  static constexpr bool kIsF8 = kIsF8_;
  using Element = Element_;
  static constexpr int kHeadDim = kHeadDim_;
  static constexpr int kBlockSize = kBlockSize_;
};

__device__ inline __nv_bfloat16 rounded(float x, __nv_bfloat16) { return __float2bfloat16(x); }
__device__ inline __half rounded(float x, __half) { return __float2half(x); }
__device__ inline float widened(__nv_bfloat16 x) { return __bfloat162float(x); }
__device__ inline float widened(__half x) { return __half2float(x); }

template <typename Traits>
struct StatsShared {
  static constexpr int kHeadDim = Traits::kHeadDim;
  static constexpr int kBlockSize = Traits::kBlockSize;
  float partial[kStatsThreads / 32][kHeadDim];
  float row[kHeadDim];  // what distances are taken from
  float
      nearest[kBlockSize];  // squared distance to the nearest of centroid and witnesses; -1: taken
  int chosen;
};

/// A thread's share of a block: 8 columns of every kRowStep-th row.
template <typename Traits>
class BlockRows {
 public:
  using Element = typename Traits::Element;
  static constexpr int kHeadDim = Traits::kHeadDim;
  static constexpr int kThreadsPerRow = kHeadDim / 8;
  static constexpr int kRowStep = kStatsThreads / kThreadsPerRow;
  static constexpr int kRows = Traits::kBlockSize / kRowStep;

  __device__ BlockRows(const Element* block, int64_t row_stride)
      : column_(static_cast<int>(threadIdx.x) % kThreadsPerRow * 8),
        first_row_(static_cast<int>(threadIdx.x) / kThreadsPerRow) {
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      data_[i] = __ldcs(reinterpret_cast<const uint4*>(block + row(i) * row_stride + column_));
    }
  }
  /// Of E4M3 codes.
  __device__ BlockRows(const uint8_t* block, int64_t row_stride, float scale)
      : column_(static_cast<int>(threadIdx.x) % kThreadsPerRow * 8),
        first_row_(static_cast<int>(threadIdx.x) / kThreadsPerRow) {
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const uint2 codes =
          __ldcs(reinterpret_cast<const uint2*>(block + row(i) * row_stride + column_));
      float low[4], high[4];
      ptx::unpack_e4m3(codes.x, low);
      ptx::unpack_e4m3(codes.y, high);
      data_[i] = {ptx::pack2<Element>(low[0] * scale, low[1] * scale),
                  ptx::pack2<Element>(low[2] * scale, low[3] * scale),
                  ptx::pack2<Element>(high[0] * scale, high[1] * scale),
                  ptx::pack2<Element>(high[2] * scale, high[3] * scale)};
    }
  }
  __device__ int column() const { return column_; }
  __device__ int row(int i) const { return first_row_ + i * kRowStep; }
  __device__ uint4 bits(int i) const { return data_[i]; }

  /// visit(column offset 0 ... 7, value)
  template <typename Visit>
  __device__ void for_columns(int i, Visit visit) const {
    const uint32_t words[4] = {data_[i].x, data_[i].y, data_[i].z, data_[i].w};
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const float2 pair = ptx::unpack2<Element>(words[j]);
      visit(2 * j, pair.x);
      visit(2 * j + 1, pair.y);
    }
  }

  /// Squared distance of row(i) to `from`; all threads of the row get it.
  __device__ float squared_distance(int i, const float* from) const {
    float sum = 0;
    for_columns(i, [&](int c, float x) {
      const float difference = x - from[column_ + c];
      sum = fmaf(difference, difference, sum);
    });
#pragma unroll
    for (int o = kThreadsPerRow / 2; o > 0; o /= 2) sum += __shfl_xor_sync(~0u, sum, o);
    return sum;
  }

  /// Mean over rows whose `nearest` is not negative, rounded, to global memory and shared.row.
  __device__ void mean(StatsShared<Traits>& shared, int count, bool all, Element* to) const {
    float sum[8] = {};
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      if (!all && shared.nearest[row(i)] < 0) continue;
      for_columns(i, [&](int c, float x) { sum[c] += x; });
    }
    const int warp = static_cast<int>(threadIdx.x) / 32;
#pragma unroll
    for (int c = 0; c < 8; ++c) {
#pragma unroll
      for (int o = kThreadsPerRow; o < 32; o *= 2) sum[c] += __shfl_xor_sync(~0u, sum[c], o);
      if (static_cast<int>(threadIdx.x) % 32 < kThreadsPerRow) {
        shared.partial[warp][column_ + c] = sum[c];
      }
    }
    __syncthreads();
    const int c = static_cast<int>(threadIdx.x);
    if (c < kHeadDim) {
      float total = 0;
#pragma unroll
      for (int w = 0; w < kStatsThreads / 32; ++w) total += shared.partial[w][c];
      to[c] = rounded(total / static_cast<float>(count), Element());
      // Distances are taken from the stored centroid, so that the bound holds for it.
      shared.row[c] = widened(to[c]);
    }
    __syncthreads();
  }

 private:
  int column_;
  int first_row_;
  uint4 data_[kRows];
};

/// The key farthest from what is already kept, ties to the earlier; whole CTA.
template <typename Traits>
__device__ int choose_farthest(StatsShared<Traits>& shared) {
  constexpr int kBlockSize = Traits::kBlockSize;
  if (threadIdx.x < 32) {
    unsigned long long best = 0;
    for (int t = static_cast<int>(threadIdx.x); t < kBlockSize; t += 32) {
      const float distance = shared.nearest[t];
      // Distances are not negative, so their bits order like numbers; NaN blocks are flagged.
      const unsigned bits = distance >= 0 ? __float_as_uint(distance) + 1 : 0;
      const unsigned long long key =
          static_cast<unsigned long long>(bits) << 32 | static_cast<unsigned>(kBlockSize - 1 - t);
      best = max(best, key);
    }
#pragma unroll
    for (int o = 16; o > 0; o /= 2) best = max(best, __shfl_xor_sync(~0u, best, o));
    if (threadIdx.x == 0) shared.chosen = kBlockSize - 1 - static_cast<int>(best & 0xffffffffu);
  }
  __syncthreads();
  return shared.chosen;
}

/// Means of a turned page of codes: a warp adds up a column's tokens.
template <typename Traits>
__device__ void mean_of_turned(const uint8_t* block, int64_t column_stride, float scale,
                               typename Traits::Element* to) {
  constexpr int kTokensPerLane = 4;
  static_assert(Traits::kBlockSize == 32 * kTokensPerLane);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  for (int column = static_cast<int>(threadIdx.x) / 32; column < Traits::kHeadDim;
       column += kStatsThreads / 32) {
    float values[4];
    ptx::unpack_e4m3(
        *reinterpret_cast<const uint32_t*>(block + column * column_stride + lane * kTokensPerLane),
        values);
    float sum = values[0] + values[1] + values[2] + values[3];
#pragma unroll
    for (int o = 16; o > 0; o /= 2) sum += __shfl_xor_sync(~0u, sum, o);
    if (lane == 0) {
      to[column] = rounded(sum * scale / Traits::kBlockSize, typename Traits::Element());
    }
  }
}

template <typename Traits>
__global__ __launch_bounds__(kStatsThreads) void block_stats_kernel(const StatsParams p) {
  using Element = typename Traits::Element;
  constexpr int kBlockSize = Traits::kBlockSize;
  __shared__ StatsShared<Traits> shared;
  const int64_t block = p.first_block + blockIdx.x;
  const int64_t head = blockIdx.y;
  const int64_t entry = p.page_table != nullptr ? p.page_table[block] : p.block_offset + block;
  const int64_t start =
      (p.page_table != nullptr ? entry * p.block_stride
                               : (*p.kv_offset + block * kBlockSize) * p.row_stride) +
      head * p.head_stride;
  Element* v_mean =
      static_cast<Element*>(p.v_mean) + entry * p.v_mean_strides[0] + head * p.v_mean_strides[1];
  using Rows = BlockRows<Traits>;
  const Rows keys = [&] {
    if constexpr (Traits::kIsF8) {
      const int64_t scale = entry * p.scale_stride + head;
      mean_of_turned<Traits>(static_cast<const uint8_t*>(p.v) + start, p.row_stride,
                             p.v_scale[scale], v_mean);
      return Rows(static_cast<const uint8_t*>(p.k) + start, p.row_stride, p.k_scale[scale]);
    } else {
      const Rows values(static_cast<const Element*>(p.v) + start, p.row_stride);
      values.mean(shared, kBlockSize, true, v_mean);
      return Rows(static_cast<const Element*>(p.k) + start, p.row_stride);
    }
  }();
  keys.mean(shared, kBlockSize, true,
            static_cast<Element*>(p.centroid) + entry * p.centroid_strides[0] +
                head * p.centroid_strides[1]);
  float farthest = 0;
  bool finite = true;
#pragma unroll
  for (int i = 0; i < Rows::kRows; ++i) {
    const float distance = keys.squared_distance(i, shared.row);
    finite &= distance - distance == 0;
    farthest = fmaxf(farthest, distance);
    if (keys.column() == 0) shared.nearest[keys.row(i)] = distance;
  }
  finite = __syncthreads_and(finite);
#pragma unroll
  for (int o = 16; o > 0; o /= 2) farthest = fmaxf(farthest, __shfl_xor_sync(~0u, farthest, o));
  if (threadIdx.x % 32 == 0) shared.partial[threadIdx.x / 32][0] = farthest;
  __syncthreads();
  if (threadIdx.x == 0) {
    for (int w = 0; w < kStatsThreads / 32; ++w) farthest = fmaxf(farthest, shared.partial[w][0]);
    p.radius[entry * p.radius_strides[0] + head * p.radius_strides[1]] = sqrtf(farthest);
    p.non_finite[entry * p.non_finite_strides[0] + head * p.non_finite_strides[1]] = !finite;
  }

  for (int w = 0; w < p.num_witnesses; ++w) {
    const int chosen = choose_farthest(shared);
#pragma unroll
    for (int i = 0; i < Rows::kRows; ++i) {
      if (keys.row(i) != chosen) continue;
      keys.for_columns(i, [&](int c, float x) { shared.row[keys.column() + c] = x; });
      *reinterpret_cast<uint4*>(static_cast<Element*>(p.witness) + entry * p.witness_strides[0] +
                                (head * p.num_witnesses + w) * p.witness_strides[1] +
                                keys.column()) = keys.bits(i);
      if (keys.column() == 0) shared.nearest[chosen] = -1;
    }
    __syncthreads();
    if (w + 1 == p.num_witnesses) break;
#pragma unroll
    for (int i = 0; i < Rows::kRows; ++i) {
      const float distance = keys.squared_distance(i, shared.row);
      float& nearest = shared.nearest[keys.row(i)];
      if (keys.column() == 0 && distance < nearest) nearest = distance;
    }
    __syncthreads();
  }
  if (p.num_witnesses > 0) {
    keys.mean(
        shared, kBlockSize - p.num_witnesses, false,
        static_cast<Element*>(p.rest_mean) + entry * p.rest_strides[0] + head * p.rest_strides[1]);
  }
}

/// Calls launch(traits) for the case at hand.
template <typename Element, typename Launch>
void with_traits(int64_t head_dim, int64_t block_size, Launch launch) {
  if (head_dim == 64 && block_size == 64) return launch(StatsTraits<Element, 64, 64>());
  if (head_dim == 64 && block_size == 128) return launch(StatsTraits<Element, 64, 128>());
  if (head_dim == 64) return launch(StatsTraits<Element, 64, 256>());
  if (head_dim == 128 && block_size == 64) return launch(StatsTraits<Element, 128, 64>());
  if (head_dim == 128 && block_size == 128) return launch(StatsTraits<Element, 128, 128>());
  if (head_dim == 128) return launch(StatsTraits<Element, 128, 256>());
  if (block_size == 64) return launch(StatsTraits<Element, 256, 64>());
  launch(StatsTraits<Element, 256, 128>());
}

}  // namespace

void launch_block_stats(const KvView& kv, int64_t seq, int64_t first_block, int64_t end_block,
                        int64_t block_offset, const BlockStatsView& stats, cudaStream_t stream) {
  StatsParams p = {};
  const size_t row_axis = kv.is_paged() ? 2 : 0;
  p.k = kv.k.data;
  p.v = kv.v.data;
  p.block_stride = kv.k.stride[0];
  p.head_stride = kv.k.stride[1];
  p.row_stride = kv.k.stride[row_axis];
  if (kv.is_paged()) {
    p.page_table = kv.page_table + seq * kv.page_table_stride;
  } else {
    p.kv_offset = kv.kv_offsets + seq;
  }
  p.first_block = first_block;
  p.block_offset = block_offset;
  const auto set = [](auto*& pointer, int64_t(&strides)[2], const TensorView& view) {
    pointer = static_cast<std::remove_reference_t<decltype(pointer)>>(view.data);
    strides[0] = view.stride[0];
    strides[1] = view.stride[1];
  };
  set(p.centroid, p.centroid_strides, stats.centroid);
  set(p.v_mean, p.v_mean_strides, stats.v_mean);
  set(p.radius, p.radius_strides, stats.radius);
  set(p.non_finite, p.non_finite_strides, stats.non_finite);
  p.num_witnesses = static_cast<int>(stats.num_witnesses);
  if (p.num_witnesses > 0) {
    set(p.witness, p.witness_strides, stats.witness);
    set(p.rest_mean, p.rest_strides, stats.rest_mean);
  }
  const dim3 grid(static_cast<unsigned>(end_block - first_block),
                  static_cast<unsigned>(kv.num_kv_heads()));
  const auto launch = [&]<typename Traits>(Traits) {
    block_stats_kernel<Traits><<<grid, kStatsThreads, 0, stream>>>(p);
  };
  if (kv.k.dtype == DType::kF8E4M3) {
    p.k_scale = kv.k_scale.as<const float>();
    p.v_scale = kv.v_scale.as<const float>();
    p.scale_stride = kv.k_scale.stride[0];
    launch(StatsTraits<__nv_bfloat16, 128, 128, true>());
  } else if (kv.k.dtype == DType::kBF16) {
    with_traits<__nv_bfloat16>(kv.head_dim(), stats.block_size, launch);
  } else {
    with_traits<__half>(kv.head_dim(), stats.block_size, launch);
  }
  check_cuda(cudaGetLastError(), "launching block_stats_kernel");
}

}  // namespace fovea::cuda
