// XAttention, arXiv 2503.16428: queries and keys in groups of S tokens; a group of queries meets a
// group of keys along the antidiagonal of their S x S products, sum over s of q[S-1-s].k[s] /
// (sqrt(d) S). A softmax over the groups of keys, summed per block, says what a block is worth.
#include <algorithm>
#include <cmath>

#include "fovea/base/checked_math.h"
#include "fovea/selector/lab/method.h"

namespace fovea::lab {
namespace {

class Antidiagonal final : public Method {
 public:
  explicit Antidiagonal(const Sequence& sequence)
      : sequence_(sequence),
        stride_(sequence.params.settings.antidiagonal_stride),
        groups_per_block_(sequence.block_size / stride_),
        groups_(
            sequence.num_kv_heads, ceil_div(sequence.plan.kv_len, stride_),
            stride_ * sequence.head_dim, sequence.context,
            [&](int64_t head, int64_t group, float* column) { read_group(head, group, column); }) {}

  void judge(const QueryBlock& block, Scratch& scratch, Verdict& verdict) const override {
    const int64_t d = sequence_.head_dim;
    const int64_t start = block.first_position - block.index * sequence_.block_size;
    const int64_t first_group = start / stride_;
    const int64_t num_groups = ceil_div(start + block.num_rows, stride_) - first_group;
    const int64_t padded = ceil_div(num_groups, kRowsAtOnce) * kRowsAtOnce;
    scratch.rows.assign(static_cast<size_t>(padded * stride_ * d), 0.0f);
    for (int64_t r = 0; r < block.num_rows; ++r) {
      const int64_t token = start + r - first_group * stride_;
      const int64_t place = stride_ - 1 - token % stride_;  // last query first
      std::copy_n(block.rows + r * d, d,
                  scratch.rows.data() + (token / stride_ * stride_ + place) * d);
    }
    // The query block's own groups of keys take part up to each group of queries.
    const int64_t own = block.index * groups_per_block_;
    const int64_t num_cols = own + first_group + num_groups;
    const Plane plane =
        make_plane(scratch.rows.data(), num_groups, groups_, block.kv_head, num_cols,
                   sequence_.scale_log2 / static_cast<float>(stride_), scratch);
    hide_bad(sequence_, block, plane, groups_per_block_);
    hide_non_finite(plane, own, num_cols);
    for (int64_t u = 0; u < num_groups; ++u) {
      std::fill(plane.row(u) + own + first_group + u + 1, plane.row(u) + num_cols, kUnseen);
    }
    plane_ops().sum_of_rows(plane, scratch.of_row.data());
    plane_ops().add_probabilities(plane, scratch.of_row.data(), 1, scratch.of_col.data());
    for (int64_t b = 0; b < block.index; ++b) {
      const float* const first = scratch.of_col.data() + b * groups_per_block_;
      float sum = 0;
      for (int64_t g = 0; g < groups_per_block_; ++g) sum += first[g];
      verdict.score[static_cast<size_t>(b)] = sum;
    }
    double rest = 0;
    for (int64_t c = own; c < num_cols; ++c) {
      rest += static_cast<double>(scratch.of_col[static_cast<size_t>(c)]);
    }
    keep_coverage(sequence_, block, rest, coverage_of(sequence_.params.settings), verdict);
  }

 private:
  void read_group(int64_t head, int64_t group, float* column) const {
    const int64_t first = group * stride_;
    const int64_t count = std::min(stride_, sequence_.plan.kv_len - first);
    for (int64_t s = 0; s < count; ++s) {
      sequence_.read_key(head, first + s, column + s * sequence_.head_dim);
    }
    std::fill(column + count * sequence_.head_dim, column + stride_ * sequence_.head_dim, 0.0f);
  }

  const Sequence& sequence_;
  const int64_t stride_, groups_per_block_;
  const PackedColumns groups_;
};

}  // namespace

std::unique_ptr<Method> make_antidiagonal(const Sequence& sequence) {
  return std::make_unique<Antidiagonal>(sequence);
}

}  // namespace fovea::lab
