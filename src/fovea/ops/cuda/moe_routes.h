// Which rows go to which experts, and the tiles that this makes.
#pragma once

#include <cstdint>

#include "fovea/ops/cuda/grouped_product.h"

namespace fovea::cuda {

constexpr int64_t kMaxExperts = 256;
constexpr int64_t kMaxTopK = 16;
/// Counters lie in cache lines of their own: atomic additions to one line take turns.
constexpr int64_t kCounterStride = 32;

/// GPU memory. An expert's rows are cut into tiles of kRowsPerTile, the last one filled up with
/// rows that nobody reads; their places are called slots.
struct MoeRoutes {
  int64_t rows = 0, num_experts = 0, top_k = 0;
  int32_t* experts = nullptr;  // [rows, top_k], the likeliest first
  float* weights = nullptr;    // [rows, top_k]

  // Not for few rows:
  int32_t* ranks = nullptr;           // [rows, top_k], among the rows of the same expert
  int32_t* counters = nullptr;        // [num_experts, kCounterStride], of rows; zeros at first
  int32_t* rows_of_expert = nullptr;  // [num_experts]
  int32_t* first_tile = nullptr;      // [num_experts + 1]; the last is the number of all tiles
  int32_t* expert_of_tile = nullptr;  // [max_tiles()]
  int32_t* next_tile = nullptr;       // [2], of each product: GroupedProduct::next_tile

  int64_t max_tiles() const {
    const int64_t chosen = rows * top_k;
    return chosen < num_experts ? chosen : chosen / kRowsPerTile + num_experts;
  }
  int64_t max_slots() const { return max_tiles() * kRowsPerTile; }
};

#ifdef __CUDACC__
/// Where the tiles have the row of `choice`, an index into [rows, top_k].
__device__ inline int64_t slot_of(const MoeRoutes& routes, int64_t choice) {
  return routes.first_tile[routes.experts[choice]] * kRowsPerTile + routes.ranks[choice];
}
#endif

}  // namespace fovea::cuda
