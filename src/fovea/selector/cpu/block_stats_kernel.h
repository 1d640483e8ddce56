// Statistics of one block, written once with 16-lane vectors and compiled once per instruction set.
// See vector16.h.
//
// Products and sums are never fused (the files are compiled with -ffp-contract=off) and run in one
// order, so every instruction set yields the same bits.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "fovea/selector/cpu/block_stats_task.h"
#include "fovea/selector/cpu/vector16.h"

namespace fovea {
namespace {

inline void store_value(float* to, float value) { *to = value; }
inline void store_value(BFloat16* to, float value) { *to = to_bfloat16(value); }

template <typename T>
[[gnu::always_inline]] inline void store_first(T* to, F32x16 lanes, int64_t count) {
  for (int64_t i = 0; i < count && i < kLanes; ++i) store_value(to + i, lanes[i]);
}

// Mean over the rows that `skip` does not name; returns whether every mean is finite.
template <typename T>
bool mean_of_rows(const T* rows, int64_t stride, int64_t num_rows, int64_t head_dim,
                  const int64_t* skip, int64_t num_skip, T* mean) {
  I32x16 finite = I32x16{} - 1;
  for (int64_t c = 0; c < head_dim; c += kLanes) {
    F32x16 sum = {};
    for (int64_t t = 0; t < num_rows; ++t) {
      bool skipped = false;
      for (int64_t w = 0; w < num_skip; ++w) skipped |= skip[w] == t;
      if (!skipped) sum += load(rows + t * stride + c, head_dim - c);
    }
    // Inf and NaN survive a sum, and their difference with themselves is not zero.
    finite &= (sum - sum) == F32x16{};
    store_first(mean + c, sum / static_cast<float>(num_rows - num_skip), head_dim - c);
  }
  bool all = true;
  for (int64_t i = 0; i < kLanes; ++i) all &= finite[i] != 0;
  return all;
}

template <typename T>
[[gnu::always_inline]] inline float squared_distance(const T* a, const T* b, int64_t head_dim) {
  F32x16 sum = {};
  for (int64_t c = 0; c < head_dim; c += kLanes) {
    const F32x16 difference = load(a + c, head_dim - c) - load(b + c, head_dim - c);
    sum += difference * difference;
  }
  return sum_lanes(sum);
}

template <typename T>
void block_stats_of(const BlockStatsTask& task) {
  const T* keys = static_cast<const T*>(task.keys);
  const int64_t stride = task.key_stride, n = task.block_size, head_dim = task.head_dim;
  T* centroid = static_cast<T*>(task.centroid);
  bool finite = mean_of_rows(keys, stride, n, head_dim, nullptr, 0, centroid);
  mean_of_rows(static_cast<const T*>(task.values), task.value_stride, n, head_dim, nullptr, 0,
               static_cast<T*>(task.v_mean));

  // Distance of every key to the nearest of {centroid, witnesses so far}; -1 once it is a witness.
  float* nearest = task.scratch;
  float farthest = 0;
  for (int64_t t = 0; t < n; ++t) {
    nearest[t] = squared_distance(keys + t * stride, centroid, head_dim);
    farthest = nearest[t] > farthest ? nearest[t] : farthest;
    finite &= nearest[t] - nearest[t] == 0;
  }
  *task.radius = std::sqrt(farthest);
  *task.non_finite = finite ? 0 : 1;

  int64_t chosen[kMaxWitnesses];
  for (int64_t w = 0; w < task.num_witnesses; ++w) {
    int64_t best = -1;
    for (int64_t t = 0; t < n; ++t) {
      if (nearest[t] >= 0 && (best < 0 || nearest[t] > nearest[best])) best = t;
    }
    if (best < 0)
      best = w;  // only when distances are NaN: the block is flagged, its entries unused
    chosen[w] = best;
    std::memcpy(static_cast<T*>(task.witness) + w * task.witness_stride, keys + best * stride,
                static_cast<size_t>(head_dim) * sizeof(T));
    nearest[best] = -1;
    if (w + 1 == task.num_witnesses) break;
    for (int64_t t = 0; t < n; ++t) {
      const float distance = squared_distance(keys + t * stride, keys + best * stride, head_dim);
      nearest[t] = distance < nearest[t] ? distance : nearest[t];
    }
  }
  if (task.num_witnesses > 0) {
    mean_of_rows(keys, stride, n, head_dim, chosen, task.num_witnesses,
                 static_cast<T*>(task.rest_mean));
  }
}

inline void block_stats_of_task(const BlockStatsTask& task) {
  if (task.is_bf16) {
    block_stats_of<BFloat16>(task);
  } else {
    block_stats_of<float>(task);
  }
}

}  // namespace
}  // namespace fovea
