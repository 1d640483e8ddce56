// Statistics of a block of keys and values that the threads of a CTA hold in registers: one code
// for the kernel that writes K and V and for the pass over them, so that both give the same bits.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "fovea/tensor/block_stats_view.h"
#include "fovea/tensor/cuda/ptx/math.h"

namespace fovea::cuda {

constexpr int kStatsThreads = 256;  // of a CTA, which has one block and KV head

__device__ inline __nv_bfloat16 rounded(float x, __nv_bfloat16) { return __float2bfloat16(x); }
__device__ inline __half rounded(float x, __half) { return __float2half(x); }
__device__ inline float widened(__nv_bfloat16 x) { return __bfloat162float(x); }
__device__ inline float widened(__half x) { return __half2float(x); }

/// One array of a BlockStatsView; strides in elements.
template <typename T>
struct StatsArray {
  StatsArray() = default;
  explicit StatsArray(const TensorView& view)
      : data(static_cast<T*>(view.data)),
        entry_stride(view.stride[0]),
        row_stride(view.stride[1]) {}
  __device__ T* at(int64_t entry, int64_t row) const {
    return data + entry * entry_stride + row * row_stride;
  }

  T* data = nullptr;
  int64_t entry_stride = 0, row_stride = 0;
};

template <typename Element>
struct StatsArrays {
  StatsArrays() = default;
  explicit StatsArrays(const BlockStatsView& stats)
      : centroid(stats.centroid),
        v_mean(stats.v_mean),
        radius(stats.radius),
        non_finite(stats.non_finite),
        num_witnesses(static_cast<int>(stats.num_witnesses)) {
    if (num_witnesses > 0) {
      witness = StatsArray<Element>(stats.witness);
      rest_mean = StatsArray<Element>(stats.rest_mean);
    }
  }

  StatsArray<Element> centroid, v_mean, witness, rest_mean;
  StatsArray<float> radius;
  StatsArray<int32_t> non_finite;
  int num_witnesses = 0;
};

template <int kHeadDim, int kBlockSize>
struct StatsShared {
  float partial[kStatsThreads / 32][kHeadDim];
  float row[kHeadDim];  // what distances are taken from
  float
      nearest[kBlockSize];  // squared distance to the nearest of centroid and witnesses; -1: taken
  int chosen;
};

/// A thread's share of a block of K or V: 8 columns of every kRowStep-th row.
template <typename Element, int kHeadDim, int kBlockSize>
class BlockRows {
 public:
  using Shared = StatsShared<kHeadDim, kBlockSize>;
  static constexpr int kThreadsPerRow = kHeadDim / 8;
  static constexpr int kRowStep = kStatsThreads / kThreadsPerRow;
  static constexpr int kRows = kBlockSize / kRowStep;

  /// load(row, column): the bits of 8 elements. Called by all threads alike.
  template <typename Load>
  __device__ explicit BlockRows(Load load)
      : column_(static_cast<int>(threadIdx.x) % kThreadsPerRow * 8),
        first_row_(static_cast<int>(threadIdx.x) / kThreadsPerRow) {
#pragma unroll
    for (int i = 0; i < kRows; ++i) data_[i] = load(row(i), column_);
  }

  /// Puts change(row, column, bits) in the place of each row's bits, after all are loaded.
  template <typename Change>
  __device__ void change(Change change) {
#pragma unroll
    for (int i = 0; i < kRows; ++i) data_[i] = change(row(i), column_, data_[i]);
  }

  /// Mean over all rows, rounded, to `to` and shared.row.
  __device__ void mean(Shared& shared, Element* to) const {
    mean_of(shared, kBlockSize, to, [](int) { return true; });
  }

  /// The block's are keys: all statistics of `entry` but the mean of V.
  __device__ void keys_statistics(Shared& shared, const StatsArrays<Element>& to, int64_t entry,
                                  int64_t head) const {
    // Distances are taken from the stored centroid, so that the bound holds for it.
    mean(shared, to.centroid.at(entry, head));
    float farthest = 0;
    bool finite = true;
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const float distance = squared_distance(i, shared.row);
      finite &= distance - distance == 0;
      farthest = fmaxf(farthest, distance);
      if (column_ == 0) shared.nearest[row(i)] = distance;
    }
    finite = __syncthreads_and(finite);
#pragma unroll
    for (int o = 16; o > 0; o /= 2) farthest = fmaxf(farthest, __shfl_xor_sync(~0u, farthest, o));
    if (threadIdx.x % 32 == 0) shared.partial[threadIdx.x / 32][0] = farthest;
    __syncthreads();
    if (threadIdx.x == 0) {
      for (int w = 0; w < kStatsThreads / 32; ++w) {
        farthest = fmaxf(farthest, shared.partial[w][0]);
      }
      *to.radius.at(entry, head) = sqrtf(farthest);
      *to.non_finite.at(entry, head) = !finite;
    }
    if (to.num_witnesses > 0) pick_witnesses(shared, to, entry, head);
  }

 private:
  __device__ int row(int i) const { return first_row_ + i * kRowStep; }

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

  /// Mean over the `count` rows of which has_part(row) says so.
  template <typename HasPart>
  __device__ void mean_of(Shared& shared, int count, Element* to, HasPart has_part) const {
    float sum[8] = {};
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      if (!has_part(row(i))) continue;
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
      shared.row[c] = widened(to[c]);
    }
    __syncthreads();
  }

  /// The keys farthest from what is already kept, one after another, and the mean of the others.
  __device__ void pick_witnesses(Shared& shared, const StatsArrays<Element>& to, int64_t entry,
                                 int64_t head) const {
    for (int w = 0; w < to.num_witnesses; ++w) {
      const int chosen = choose_farthest(shared);
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        if (row(i) != chosen) continue;
        for_columns(i, [&](int c, float x) { shared.row[column_ + c] = x; });
        *reinterpret_cast<uint4*>(to.witness.at(entry, head * to.num_witnesses + w) + column_) =
            data_[i];
        if (column_ == 0) shared.nearest[chosen] = -1;
      }
      __syncthreads();
      if (w + 1 == to.num_witnesses) break;
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        const float distance = squared_distance(i, shared.row);
        float& nearest = shared.nearest[row(i)];
        if (column_ == 0 && distance < nearest) nearest = distance;
      }
      __syncthreads();
    }
    mean_of(shared, kBlockSize - to.num_witnesses, to.rest_mean.at(entry, head),
            [&](int row) { return shared.nearest[row] >= 0; });
  }

  /// Ties go to the earlier key; whole CTA.
  static __device__ int choose_farthest(Shared& shared) {
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

  int column_;
  int first_row_;
  uint4 data_[kRows];
};

/// Calls launch.template operator()<head_dim, block_size>(), which are 64, 128 or 256, but not both
/// 256.
template <typename Launch>
void with_block_shape(int64_t head_dim, int64_t block_size, Launch launch) {
  if (head_dim == 64 && block_size == 64) return launch.template operator()<64, 64>();
  if (head_dim == 64 && block_size == 128) return launch.template operator()<64, 128>();
  if (head_dim == 64) return launch.template operator()<64, 256>();
  if (head_dim == 128 && block_size == 64) return launch.template operator()<128, 64>();
  if (head_dim == 128 && block_size == 128) return launch.template operator()<128, 128>();
  if (head_dim == 128) return launch.template operator()<128, 256>();
  if (block_size == 64) return launch.template operator()<256, 64>();
  launch.template operator()<256, 128>();
}

}  // namespace fovea::cuda
