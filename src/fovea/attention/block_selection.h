// Which KV blocks each query block reads. A selector writes it, attention reads it; neither knows
// the other.
#pragma once

#include <cstdint>
#include <vector>

#include "fovea/attention/kv_view.h"
#include "fovea/base/checked_math.h"

namespace fovea {

/// Query blocks sit at absolute multiples of block_size, so a chunk of queries at positions
/// [kv_len - q_len, kv_len) touches blocks [first_q_block, end_q_block) of its sequence.
constexpr int64_t first_q_block(int64_t q_len, int64_t kv_len, int64_t block_size) {
  return (kv_len - q_len) / block_size;
}
constexpr int64_t end_q_block(int64_t kv_len, int64_t block_size) {
  return ceil_div(kv_len, block_size);
}

/// Kept share of the causal pairs, 0 ... 1; 1 when there are none.
constexpr double kept_share(int64_t kept_pairs, int64_t causal_pairs) {
  return causal_pairs > 0 ? static_cast<double>(kept_pairs) / static_cast<double>(causal_pairs)
                          : 1.0;
}

/// What kernels see; pointers are to memory of the operation's device.
///
/// The list of (q_head h, query block i of sequence s), i counted from the sequence's
/// first_q_block, is blocks[begin[r] ... begin[r] + len[r]) with r = h * num_q_blocks +
/// q_block_offsets[s] + i: KV block numbers of that sequence, ascending, none past the query block
/// when attention is causal. An empty list is valid: the rows' output is 0 and their lse -inf.
struct BlockSelectionView {
  int64_t block_size = 0;
  int64_t num_q_heads = 0;
  int64_t num_q_blocks = 0;                  // of all sequences together
  const int64_t* q_block_offsets = nullptr;  // [batch_size + 1]
  const int64_t* begin = nullptr;            // [num_q_heads, num_q_blocks]
  const int32_t* len = nullptr;              // [num_q_heads, num_q_blocks]
  const int32_t* blocks = nullptr;           // the pool of lists
  int64_t num_blocks = 0;                    // entries in the pool

  /// r of q head `q_head` and the i-th query block of sequence `seq`.
  int64_t list(int64_t q_head, int64_t seq, int64_t i) const {
    return q_head * num_q_blocks + q_block_offsets[seq] + i;
  }
};

/// Owns a selection on the CPU, with its accounting.
struct BlockSelection {
  int64_t block_size = 0;
  int64_t num_q_heads = 0;
  int64_t num_q_blocks = 0;
  std::vector<int64_t> q_block_offsets;
  std::vector<int64_t> begin;
  std::vector<int32_t> len;
  std::vector<int32_t> blocks;

  // (q head, query block, kv block) triples; the diagonal block counts as one like any other.
  int64_t causal_pairs = 0;      // that causality allows
  int64_t kept_pairs = 0;        // in the lists, forced ones included
  int64_t forced_pairs = 0;      // in the lists whatever their score: sink, local, dense tail
  int64_t non_finite_pairs = 0;  // kept because a key or query was NaN or Inf
  int64_t skipped_pairs = 0;     // not looked at, because a bound ruled them out

  double density() const { return kept_share(kept_pairs, causal_pairs); }

  BlockSelectionView view() const {
    return {block_size,   num_q_heads, num_q_blocks,  q_block_offsets.data(),
            begin.data(), len.data(),  blocks.data(), static_cast<int64_t>(blocks.size())};
  }
};

}  // namespace fovea
