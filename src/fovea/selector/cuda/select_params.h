// What the selection kernels get. Plain data; every pointer is device memory.
//
// "Facts" are what the scoring kernel needs of every block, packed per (sequence, KV head) so that
// it can stream them: one to nine rows of 16-bit numbers a block, its radius, and prefix
// quantities.
#pragma once

#include <cstdint>

namespace fovea::cuda {

constexpr int kFactTileBlocks = 64;  // blocks of one tile of facts

/// Prefix quantities at query block i: over the finite blocks before it (or over the prompt).
struct PrefixFacts {
  float low = 0;       // radius at which the uplift starts
  float high = 0;      // radius at which it is full
  float most = 0;      // radii above count as this one
  float extent = 0;    // largest ||centroid|| + radius of the blocks before
  int32_t widest = 0;  // block with the largest radius before
};

/// A place in a tile of facts. Where radii count, a tile holds its blocks by radius: blocks that
/// need no uplift then fill whole warps, which skip its exponentials.
struct alignas(8) BlockSlot {
  int32_t block = 0;
  float radius = 0;  // -1: the block is not finite
};

struct BlockFactsView {
  void* rows = nullptr;           // [batch * num_kv_heads, tiles, rows_per_block, 64, head_dim]
  BlockSlot* slots = nullptr;     // [batch * num_kv_heads, max_blocks]
  float* radius = nullptr;        // the same, by block; -1: the block is not finite
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

/// One query block, with what is decided before any score.
struct alignas(16) QueryBlock {
  int32_t seq = 0;
  int32_t q_block = 0;   // absolute
  int32_t q_row = 0;     // of q: its first
  int32_t num_rows = 0;  // query rows that exist
  int32_t sink_end = 0;  // forced: [0, sink_end) and [local_begin, q_block]
  int32_t local_begin = 0;
  int64_t first_list = 0;  // number of q head 0's list
};

/// Filled on the device, because lengths live there.
struct SelectPlan {
  int32_t* num_blocks = nullptr;
  int32_t* next_work = nullptr;  // hands out (query block, head) pairs beyond the first of each CTA
  QueryBlock* blocks = nullptr;  // longest first
};

struct SelectParams {
  SelectPlan plan;
  const int64_t* q_offsets = nullptr;
  const int64_t* kv_lens = nullptr;
  const int64_t* prompt_lens = nullptr;  // may be null
  int32_t batch_size = 0;
  int32_t num_q_heads = 0;
  int32_t num_kv_heads = 0;
  int32_t group_size = 1;
  int32_t block_size = 0;  // 64, 128 or 256
  BlockFactsView facts;

  float scale_log2 = 0;      // softmax_scale * log2(e)
  float scale = 0;           // for the range check, as the reference takes it
  bool is_bound = false;     // the uplift is the whole radius, and the base branch keeps nothing
  bool can_skip = false;     // thresholds: hopeless blocks need no exponentials
  float skip_slack = 0;      // how far below the threshold a part must lie to be hopeless, log2
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
  int64_t* q_block_offsets = nullptr;      // [max_batch_size + 1]
  unsigned long long* counters = nullptr;  // see SelectionCounter
};

enum SelectionCounter { kPoolUsed, kForcedPairs, kNonFinitePairs, kOverflowedLists, kNumCounters };

}  // namespace fovea::cuda
