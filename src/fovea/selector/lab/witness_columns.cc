#include "fovea/selector/lab/witness_columns.h"

#include <cmath>

namespace fovea::lab {

WitnessColumns::WitnessColumns(const Sequence& sequence) : sequence_(sequence) {
  const BlockStatsView& stats = sequence.params.stats;
  const auto pack = [&](const TensorView& statistic, int64_t rows_per_head, int64_t row) {
    return PackedColumns(sequence.num_kv_heads, sequence.num_blocks, sequence.head_dim,
                         sequence.context, [&](int64_t head, int64_t block, float* column) {
                           sequence.read_statistic(statistic, block, head * rows_per_head + row,
                                                   column);
                         });
  };
  rest_mean_ = pack(stats.rest_mean, 1, 0);
  for (int64_t w = 0; w < stats.num_witnesses; ++w) {
    witnesses_.push_back(pack(stats.witness, stats.num_witnesses, w));
  }
}

Plane WitnessColumns::fold(void (*add)(const Plane& from, float bias, const Plane& into),
                           const QueryBlock& block, Scratch& scratch) const {
  const auto plane_of = [&](const PackedColumns& columns, int which) {
    return make_plane(block.rows, block.num_rows, columns, block.kv_head, block.index,
                      sequence_.scale_log2, scratch, which);
  };
  const Plane sum = plane_of(witnesses_.front(), 0);
  for (size_t w = 1; w < witnesses_.size(); ++w) add(plane_of(witnesses_[w], 1), 0.0f, sum);
  // The mean counts for all the keys that are no witnesses.
  const int64_t num_rest = sequence_.block_size - sequence_.params.stats.num_witnesses;
  add(plane_of(rest_mean_, 1), std::log2(static_cast<float>(num_rest)), sum);
  hide_bad(sequence_, block, sum);
  return sum;
}

}  // namespace fovea::lab
