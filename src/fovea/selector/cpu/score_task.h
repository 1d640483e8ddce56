// The work of one (q head, query block) and the kernels that do it, one per instruction set.
#pragma once

#include <cstdint>

#include "fovea/selector/block_selector.h"

namespace fovea {

/// Blocks are scored in groups of this many, one vector lane each.
constexpr int64_t kGroupBlocks = 16;

/// Added to the logits of blocks that must not be seen: far below any logit that kLargestLogit lets
/// through, which with log2(e) and an uplift reaches 3e37, while twice as much is still finite.
constexpr float kMasked = -1e38f;

/// Scores query block against KV blocks [0, num_blocks). All scores and biases are base-2
/// logarithms, which saves a multiplication per exponential.
struct ScoreTask {
  const void* q = nullptr;  // [num_rows, head_dim], f32 or bf16
  int64_t q_stride = 0;     // in elements
  bool q_is_bf16 = false;
  int64_t num_rows = 0, head_dim = 0, num_blocks = 0;
  /// [group, num_reps, head_dim, kGroupBlocks] in f32, or [group, num_reps, head_dim / 2,
  /// kGroupBlocks, 2] in bf16: what stands for each block, zeros past the last one.
  const void* packed = nullptr;
  /// Instead of `packed`, for one row: [num_blocks, num_reps] rows of the type of q.
  const void* const* rep_rows = nullptr;
  int64_t num_reps = 1;
  const float* rep_bias = nullptr;  // [num_reps]: log2 of the keys that a representative stands for
  const float* block_mask = nullptr;  // [groups * kGroupBlocks]: 0, or kMasked
  float scale = 1;                    // softmax_scale * log2(e)
  Aggregation aggregation = Aggregation::kSum;
  int64_t first_normaliser_rep = 0;  // rows are normalised by the representatives from here on
  int64_t num_branches = 1;
  const float* uplift[2] =
      {};                    // [groups * kGroupBlocks] radii to add times ||q||, or null for none
  float* score[2] = {};      // [groups * kGroupBlocks]
  double largest_key = 0;    // bound on the norm of every key in blocks [0, num_blocks)
  float* scratch = nullptr;  // score_scratch_floats() floats, 64-byte aligned
};

constexpr int64_t padded_rows(int64_t num_rows) { return (num_rows + 15) / 16 * 16; }

/// Floats of scratch that a task of this size needs: queries, one tile of logits, norms and
/// per-row normalisers. Independent of the number of KV blocks.
constexpr int64_t score_scratch_floats(int64_t num_rows, int64_t head_dim) {
  return padded_rows(num_rows) * (head_dim + kGroupBlocks + 2 * kGroupBlocks + 2);
}

/// Returns false, with no scores written, when a query is not finite or so large that a logit could
/// leave f32.
using ScoreKernel = bool (*)(const ScoreTask& task);

bool score_portable(const ScoreTask& task);
bool score_avx2(const ScoreTask& task);
bool score_avx512(const ScoreTask& task);
bool score_avx512_bf16(const ScoreTask& task);  // packed in bf16, head_dim a multiple of 2
bool score_amx_bf16(const ScoreTask& task);     // packed in bf16, head_dim a multiple of 32

}  // namespace fovea
