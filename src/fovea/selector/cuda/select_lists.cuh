// From scores to lists: forced blocks, thresholds or budget, and the entries in the pool. Whole
// CTA.
#pragma once

#include "fovea/selector/cuda/select_params.h"

namespace fovea::cuda {

constexpr int kSelectThreads = 128;

/// One q head of one query block, with what is decided before any score.
struct SelectRow {
  int head = 0;
  int group = 0;     // sequence and KV head, as facts are packed
  int q_block = 0;   // absolute
  int num_rows = 0;  // query rows that exist
  int q_row = 0;     // of q: the block's first
  int sink_end = 0;  // forced: [0, sink_end) and [local_begin, q_block]
  int local_begin = 0;
  int list = 0;  // number of its list

  __device__ bool is_forced(int block) const { return block < sink_end || block >= local_begin; }
  __device__ bool is_scored() const { return sink_end < local_begin; }
  __device__ int num_forced() const { return sink_end + q_block + 1 - local_begin; }
};

/// Row number `work`: long query blocks first, all heads of one together.
__device__ inline SelectRow describe_select_row(const SelectParams& p, int work) {
  const QTile tile = p.plan.tiles[work / p.num_q_heads];
  SelectRow row;
  row.head = work % p.num_q_heads;
  row.group = tile.seq * p.num_kv_heads + row.head / p.group_size;
  row.q_block = tile.q_tile;
  const int64_t q_begin = p.q_offsets[tile.seq];
  const int64_t q_len = p.q_offsets[tile.seq + 1] - q_begin;
  const int64_t kv_len = p.kv_lens[tile.seq];
  const int64_t first_q_block = (kv_len - q_len) / kSelectBlockSize;
  const int64_t before = (row.q_block - first_q_block) * kSelectBlockSize;
  row.q_row = static_cast<int>(q_begin + before);
  row.num_rows = static_cast<int>(min(q_len - before, static_cast<int64_t>(kSelectBlockSize)));
  row.list = static_cast<int>(row.head * p.num_q_blocks + p.q_block_offsets[tile.seq] +
                              row.q_block - first_q_block);

  const int64_t prompt_len = p.prompt_lens != nullptr ? p.prompt_lens[tile.seq] : kv_len;
  const int64_t prompt_blocks = (prompt_len + kSelectBlockSize - 1) / kSelectBlockSize;
  const bool is_dense = prompt_len < p.min_sparse_len ||
                        row.q_block >= max(prompt_blocks - p.dense_tail_blocks, int64_t{0});
  const int64_t end = row.q_block + 1;
  row.sink_end = static_cast<int>(is_dense ? end : min(p.sink_blocks, end));
  row.local_begin = static_cast<int>(max(static_cast<int64_t>(row.sink_end), end - p.local_blocks));
  return row;
}

/// Order-preserving map of floats to unsigned; -inf and everything above map above 0.
__device__ inline unsigned ordered_bits(float x) {
  const unsigned bits = __float_as_uint(x);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}
__device__ inline float from_ordered_bits(unsigned key) {
  return __uint_as_float(key & 0x80000000u ? key ^ 0x80000000u : ~key);
}

struct ListShared {
  unsigned counts[3][2];  // rotating, for count_at_least()
  long long start;
};

/// Keeps the `count` best of the blocks whose key is not 0, ties to the lower block: sets key to
/// kKept in their places. Keys are never above kKept - 1. Whole CTA, ends with a barrier.
constexpr unsigned kKept = 0xffffffffu;
__device__ inline void keep_best(unsigned* keys, int num_blocks, int count, ListShared& shared) {
  const int thread = static_cast<int>(threadIdx.x);
  // The largest cut that `count` keys reach, two bits at a time, until exactly `count` do.
  unsigned cut = 0;
  int reached = num_blocks + 1;
  if (thread < 6) shared.counts[thread / 2][thread % 2] = 0;
  __syncthreads();
  for (int bit = 30, slot = 0; bit >= 0 && reached != count && count > 0;
       bit -= 2, slot = slot == 2 ? 0 : slot + 1) {
    unsigned first_two = 0;
    unsigned third = 0;
    for (int b = thread; b < num_blocks; b += kSelectThreads) {
      const unsigned key = keys[b];
      if (key == kKept) continue;
      first_two += (key >= (cut | 1u << bit) ? 1u : 0u) + (key >= (cut | 2u << bit) ? 65536u : 0u);
      third += key >= (cut | 3u << bit) ? 1u : 0u;
    }
    first_two = __reduce_add_sync(~0u, first_two);
    third = __reduce_add_sync(~0u, third);
    if (thread % 32 == 0) {
      atomicAdd(&shared.counts[slot][0], first_two);
      atomicAdd(&shared.counts[slot][1], third);
    }
    const int next = slot == 2 ? 0 : slot + 1;
    if (thread == 0) shared.counts[next][0] = shared.counts[next][1] = 0;
    __syncthreads();
    const unsigned both = *static_cast<volatile unsigned*>(&shared.counts[slot][0]);
    const auto at_third =
        static_cast<int>(*static_cast<volatile unsigned*>(&shared.counts[slot][1]));
    const auto at_second = static_cast<int>(both >> 16);
    const auto at_first = static_cast<int>(both & 0xffff);
    const unsigned digit = at_third >= count    ? 3u
                           : at_second >= count ? 2u
                           : at_first >= count  ? 1u
                                                : 0u;
    if (digit > 0) reached = digit == 3 ? at_third : digit == 2 ? at_second : at_first;
    cut |= digit << bit;
  }
  __syncthreads();
  if (count <= 0) return;
  if (reached == count) {
    for (int b = thread; b < num_blocks; b += kSelectThreads) {
      if (keys[b] != kKept && keys[b] >= cut) keys[b] = kKept;
    }
  } else if (thread < 32) {  // equal keys at the cut: those above, then the first of the equal ones
    int above = 0;
    for (int b = thread; b < num_blocks; b += 32) above += keys[b] != kKept && keys[b] > cut;
    int left = count - static_cast<int>(__reduce_add_sync(~0u, static_cast<unsigned>(above)));
    for (int start = 0; start < num_blocks; start += 32) {
      const int b = start + thread;
      const unsigned key = b < num_blocks ? keys[b] : 0;
      const bool is_equal = key == cut && key != 0;
      const unsigned equal = __ballot_sync(~0u, is_equal);
      const bool is_taken = is_equal && __popc(equal & ((1u << thread) - 1)) < left;
      if (b < num_blocks && (is_taken || (key > cut && key != kKept))) keys[b] = kKept;
      left = max(left - __popc(equal), 0);
    }
  }
  __syncthreads();
}

/// Writes the list whose bit mask is words[k * stride], k < num_words; words[k * stride + 1] is
/// scratch. A list that holds everything, or that the pool has no room for, is the shared one.
__device__ inline void write_list(const SelectParams& p, const SelectRow& row, unsigned* words,
                                  int stride, ListShared& shared) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int num_words = row.q_block / 32 + 1;
  __syncthreads();
  if (warp == 0) {
    int total = 0;
    for (int start = 0; start < num_words; start += 32) {
      const int k = start + lane;
      const int count = k < num_words ? __popc(words[k * stride]) : 0;
      int sum = count;
#pragma unroll
      for (int o = 1; o < 32; o *= 2) {
        const int other = __shfl_up_sync(~0u, sum, o);
        if (lane >= o) sum += other;
      }
      if (k < num_words) words[k * stride + 1] = static_cast<unsigned>(total + sum - count);
      total += __shfl_sync(~0u, sum, 31);
    }
    if (lane == 0) {
      long long at = -1;
      if (total < row.q_block + 1 && total > 0) {
        at = static_cast<long long>(
            atomicAdd(&p.counters[kPoolUsed], static_cast<unsigned long long>(total)));
        if (at + total > p.pool_size) {
          at = -1;
          atomicAdd(&p.counters[kOverflowedLists], 1ull);
        }
      }
      p.begin[row.list] = at < 0 ? 0 : at;
      p.len[row.list] = at < 0 && total > 0 ? row.q_block + 1 : total;
      shared.start = at;
      atomicAdd(&p.counters[kForcedPairs], static_cast<unsigned long long>(row.num_forced()));
    }
  }
  __syncthreads();
  const long long at = shared.start;
  if (at >= 0) {
    for (int k = warp; k < num_words; k += kSelectThreads / 32) {
      const unsigned bits = words[k * stride];
      if (bits >> lane & 1) {
        p.pool[at + words[k * stride + 1] + __popc(bits & ((1u << lane) - 1))] = k * 32 + lane;
      }
    }
  }
  __syncthreads();
}

}  // namespace fovea::cuda
