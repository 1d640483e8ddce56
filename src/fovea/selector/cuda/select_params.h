// What the selection kernels get. Plain data; every pointer is device memory.
//
// "Facts" are what the scoring kernel needs of every block, packed per (sequence, KV head) so that
// it can stream them: one to nine rows of 16-bit numbers a block, its radius, and prefix
// quantities.
#pragma once

#include <cstdint>

#include "fovea/attention/cuda/prefill_params.h"

namespace fovea::cuda {

constexpr int kSelectBlockSize = 128;  // tokens of a block, rows of a query block
constexpr int kFactTileBlocks = 64;    // blocks of one tile of facts

/// Prefix quantities at query block i: over the finite blocks before it (or over the prompt).
struct PrefixFacts {
  float low = 0;       // radius at which the uplift starts
  float high = 0;      // radius at which it is full
  float most = 0;      // radii above count as this one
  float extent = 0;    // largest ||centroid|| + radius of the blocks before
  int32_t widest = 0;  // block with the largest radius before
};

struct BlockFactsView {
  void* rows = nullptr;           // [batch * num_kv_heads, tiles, rows_per_block, 64, head_dim]
  float* radius = nullptr;        // [batch * num_kv_heads, max_blocks]; -1: the block is not finite
  float* extent = nullptr;        // the same
  int32_t* order = nullptr;       // the same: blocks by radius, the non-finite ones last
  PrefixFacts* prefix = nullptr;  // [batch * num_kv_heads, max_blocks + 1]
  int32_t max_blocks = 0;         // a multiple of 64
  int32_t rows_per_block = 1;     // 1 + num_witnesses
};

/// Strided statistics as the caller holds them, see BlockStatsView.
struct StatsSource {
  const void* mean = nullptr;  // centroid, or the mean of the rest for `witness`
  const void* centroid = nullptr;
  const void* witness = nullptr;
  const float* radius = nullptr;
  const int32_t* non_finite = nullptr;
  int64_t mean_strides[2] = {};
  int64_t centroid_strides[2] = {};
  int64_t witness_strides[2] = {};
  int64_t radius_strides[2] = {};
  int64_t non_finite_strides[2] = {};
  const int32_t* page_table = nullptr;  // or
  const int64_t* block_offsets = nullptr;
  int64_t page_table_stride = 0;
};

struct SelectParams {
  PrefillPlan plan;
  const int64_t* q_offsets = nullptr;
  const int64_t* kv_lens = nullptr;
  const int64_t* prompt_lens = nullptr;  // may be null
  const int64_t* q_block_offsets = nullptr;
  int32_t batch_size = 0;
  int32_t num_q_heads = 0;
  int32_t num_kv_heads = 0;
  int32_t group_size = 1;
  BlockFactsView facts;

  float scale_log2 = 0;      // softmax_scale * log2(e)
  float scale = 0;           // for the range check, as the reference takes it
  bool is_bound = false;     // the uplift is the whole radius
  bool can_skip = false;     // thresholds: hopeless blocks need no exponentials
  float rest_bias_log2 = 0;  // witness: log2 of the keys that the mean stands for
  float log2_alpha_base = 0;
  float log2_alpha_rescue = 0;
  bool forced_in_maximum = false;
  const int32_t* budget =
      nullptr;  // blocks of query block i, forced ones included; null: thresholds
  double rescue_share = 0;
  int64_t sink_blocks = 0;
  int64_t local_blocks = 0;
  int64_t dense_tail_blocks = 0;
  int64_t min_sparse_len = 0;
  bool is_fixed = false;  // all or streaming: nothing is scored

  // Lists. pool[0, max_blocks) holds 0, 1, 2 ...: rows that read everything share it.
  int64_t* begin = nullptr;
  int32_t* len = nullptr;
  int32_t* pool = nullptr;
  int64_t pool_size = 0;
  int64_t num_q_blocks = 0;
  unsigned long long* counters = nullptr;  // see SelectionCounter
};

enum SelectionCounter { kPoolUsed, kForcedPairs, kNonFinitePairs, kOverflowedLists, kNumCounters };

}  // namespace fovea::cuda
