#include "fovea/selector/lab/pooled.h"

#include <algorithm>
#include <cmath>

#include "fovea/base/checked_math.h"

namespace fovea::lab {

PooledKeys::PooledKeys(const Sequence& sequence)
    : sequence_(sequence),
      means_(sequence.num_kv_heads, sequence.plan.end_block, sequence.head_dim, sequence.context,
             [&](int64_t head, int64_t block, float* mean) {
               const int64_t first = block * sequence.block_size;
               const int64_t count = std::min(sequence.block_size, sequence.plan.kv_len - first);
               std::vector<float> key(static_cast<size_t>(sequence.head_dim));
               std::fill_n(mean, sequence.head_dim, 0.0f);
               for (int64_t t = 0; t < count; ++t) {
                 sequence.read_key(head, first + t, key.data());
                 for (size_t c = 0; c < key.size(); ++c) mean[c] += key[c];
               }
               for (size_t c = 0; c < key.size(); ++c) mean[c] /= static_cast<float>(count);
             }) {}

Plane PooledKeys::logits(const QueryBlock& block, Scratch& scratch) const {
  const int64_t d = sequence_.head_dim;
  scratch.rows.assign(static_cast<size_t>(kRowsAtOnce * d), 0.0f);
  for (int64_t r = 0; r < block.num_rows; ++r) {
    for (int64_t c = 0; c < d; ++c) scratch.rows[static_cast<size_t>(c)] += block.rows[r * d + c];
  }
  for (int64_t c = 0; c < d; ++c) {
    scratch.rows[static_cast<size_t>(c)] /= static_cast<float>(block.num_rows);
  }
  const Plane plane = make_plane(scratch.rows.data(), 1, means_, block.kv_head, block.index + 1,
                                 sequence_.scale_log2, scratch);
  hide_bad(sequence_, block, plane);
  hide_non_finite(plane, block.index, block.index + 1);
  return plane;
}

void to_probabilities(const Plane& row, int64_t count) {
  const float largest = *std::max_element(row.data, row.data + count);
  double sum = 0;
  for (int64_t c = 0; c < count; ++c) {
    row.data[c] = std::exp2(row.data[c] - largest);
    sum += static_cast<double>(row.data[c]);
  }
  for (int64_t c = 0; c < count; ++c) {
    row.data[c] = static_cast<float>(static_cast<double>(row.data[c]) / sum);
  }
}

}  // namespace fovea::lab
