#include "fovea/engine/work_count.h"

#include <algorithm>

#include "fovea/engine/weights.h"

namespace fovea {
namespace {

/// `pairs` of queries and keys, all heads together.
void count_pairs(const ModelConfig& config, int64_t pairs, int64_t keys_in_reach,
                 int64_t kv_element_bytes, WorkDone* work) {
  work->attention_flops += 4 * pairs * config.head_dim;
  work->kv_bytes += 2 * keys_in_reach * config.num_kv_heads * config.head_dim * kv_element_bytes;
}

}  // namespace

void count_matmul(int64_t num_rows, const PackedWeights& weights, WorkDone* work) {
  work->matmul_flops += 2 * num_rows * weights.out_features() * weights.in_features();
  work->weight_bytes += weights.size_bytes();
}

void count_layer_matmuls(int64_t num_rows, const LayerWeights& weights, int64_t experts_per_token,
                         WorkDone* work) {
  for (const PackedWeights* matrix :
       {&weights.qkv, &weights.attention_out, &weights.gate_up, &weights.down, &weights.router}) {
    count_matmul(num_rows, *matrix, work);
  }
  // Each row goes through some of the experts; a step reads those that some row goes through.
  const int64_t num_experts = weights.experts_gate_up.num_experts();
  const int64_t read = std::min(num_experts, num_rows * experts_per_token);
  for (const ExpertWeights* experts : {&weights.experts_gate_up, &weights.experts_down}) {
    if (experts->empty()) continue;
    work->matmul_flops +=
        2 * num_rows * experts_per_token * experts->out_features() * experts->in_features();
    work->weight_bytes += experts->size_bytes() / num_experts * read;
  }
}

void count_dense_attention(const ModelConfig& config, const StepRows& rows, int64_t window_left,
                           int64_t kv_element_bytes, WorkDone* work) {
  const int64_t kv_len = rows.position + rows.num_rows;
  const int64_t reach = window_left >= 0 ? window_left + 1 : kv_len;
  // Rows whose whole past is in reach see 1, 2, 3 ... keys, the others `reach`.
  const int64_t growing =
      std::clamp(std::min(reach, kv_len) - rows.position, int64_t{0}, rows.num_rows);
  const int64_t pairs = growing * (2 * rows.position + growing + 1) / 2 +
                        (rows.num_rows - growing) * std::min(reach, kv_len);
  count_pairs(config, pairs * config.num_q_heads, std::min(kv_len, rows.num_rows - 1 + reach),
              kv_element_bytes, work);
}

void count_sparse_attention(const ModelConfig& config, const StepRows& rows, int64_t block_size,
                            const SelectionLengths& lengths, int64_t kv_element_bytes,
                            WorkDone* work) {
  const int64_t kv_len = rows.position + rows.num_rows;
  const int64_t first_block = rows.position / block_size;
  int64_t pairs = 0;
  for (int64_t i = 0; i * block_size + first_block * block_size < kv_len; ++i) {
    const int64_t block_start = (first_block + i) * block_size;
    const int64_t first_slot = std::max(block_start, rows.position) - block_start;
    const int64_t num_rows = std::min(block_size, kv_len - block_start) - first_slot;
    for (int64_t head = 0; head < lengths.num_q_heads; ++head) {
      const int64_t len = lengths.len[static_cast<size_t>(head * lengths.num_q_blocks + i)];
      if (len == 0) continue;
      pairs += (len - 1) * num_rows * block_size;               // whole blocks
      pairs += num_rows * (2 * first_slot + num_rows + 1) / 2;  // the diagonal one
    }
  }
  count_pairs(config, pairs, kv_len, kv_element_bytes, work);
}

}  // namespace fovea
