// What the lab's selectors share: how they read a sequence, and how one is asked about a query
// block. Each is one file; lab_selector.cc asks it and turns its verdicts into lists.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "fovea/selector/lab/plane.h"
#include "fovea/selector/selection_rules.h"

namespace fovea::lab {

/// One sequence of a call, and what its statistics say of its blocks.
class Sequence {
 public:
  Sequence(const SelectorParams& params, const SequencePlan& plan, const Context& context);

  const SelectorParams& params;
  const SequencePlan& plan;
  const Context& context;
  const int64_t block_size, head_dim, num_q_heads, num_kv_heads;
  const int64_t num_blocks;  // complete ones that a query block may score
  const float scale_log2;    // softmax_scale in base-2 logarithms

  int64_t kv_head(int64_t q_head) const { return q_head / (num_q_heads / num_kv_heads); }
  /// Position of the sequence's first query row.
  int64_t first_position() const { return plan.kv_len - plan.q_len; }
  /// Widens query row `row` of the sequence, or key `key`, to head_dim floats.
  void read_query(int64_t q_head, int64_t row, float* to) const;
  void read_key(int64_t kv_head, int64_t key, float* to) const;
  /// Widens row `row` of a block's statistic.
  void read_statistic(const TensorView& statistic, int64_t block, int64_t row, float* to) const;

  /// Whether a block's keys are not all finite; it is kept, and nothing is computed from it.
  bool is_bad(int64_t kv_head, int64_t block) const {
    return bad_[static_cast<size_t>(kv_head * num_blocks + block)] != 0;
  }
  /// Bound on the norms of the finite keys of blocks [0, num_blocks).
  double largest_key(int64_t kv_head, int64_t end) const;

 private:
  std::vector<uint8_t> bad_;         // [num_kv_heads, num_blocks]
  std::vector<double> largest_key_;  // the same; running maxima over blocks
};

/// Columns for PlaneOps::product, one matrix a head.
class PackedColumns {
 public:
  using Fill = std::function<void(int64_t head, int64_t col, float* column)>;
  PackedColumns() = default;
  /// `fill` writes the `depth` floats of a column; columns up to a whole tile are zeros.
  PackedColumns(int64_t num_heads, int64_t num_cols, int64_t depth, const Context& context,
                const Fill& fill);
  const float* of_head(int64_t head) const { return data_.as<float>() + head * head_size_; }
  int64_t depth() const { return depth_; }

 private:
  Tensor data_;
  int64_t depth_ = 0, head_size_ = 0;
};

/// One query block of one q head.
struct QueryBlock {
  int64_t q_head = 0, kv_head = 0;
  int64_t index = 0;           // of the block; it scores blocks [0, index)
  int64_t first_position = 0;  // of its first row: a multiple of block_size but in decode
  int64_t num_rows = 0;
  const float* rows = nullptr;  // [num_rows padded to kRowsAtOnce, head_dim]
  ForcedBlocks forced;
};

/// Buffers of one thread.
struct Scratch {
  std::vector<float> queries, rows, planes[2], of_row, of_col;

  /// A plane of `num_rows` and at least `num_cols` in planes[which].
  Plane plane(int which, int64_t num_rows, int64_t num_cols);
};

/// What a method makes of blocks [0, index).
struct Verdict {
  std::vector<float> score;   // with a budget the highest are kept
  std::vector<uint8_t> keep;  // without: those to keep, forced or not
  int64_t num_skipped = 0;    // not looked at, as BlockSelection has it
};

/// One selector, ready for one sequence. Called by several threads at once.
class Method {
 public:
  virtual ~Method() = default;
  /// Fills `verdict`, which has room for the blocks and holds zeros. What it says of bad and of
  /// forced blocks is ignored.
  virtual void judge(const QueryBlock& block, Scratch& scratch, Verdict& verdict) const = 0;
};

std::unique_ptr<Method> make_minmax(const Sequence& sequence);
std::unique_ptr<Method> make_antidiagonal(const Sequence& sequence);
std::unique_ptr<Method> make_vertical_slash(const Sequence& sequence);
std::unique_ptr<Method> make_query_aware(const Sequence& sequence);
std::unique_ptr<Method> make_self_similar(const Sequence& sequence);
std::unique_ptr<Method> make_nearest(const Sequence& sequence);
std::unique_ptr<Method> make_mass(const Sequence& sequence);
std::unique_ptr<Method> make_peak(const Sequence& sequence);
std::unique_ptr<Method> make_skip_by_bound(const Sequence& sequence);

/// plane = scale * rows . columns, for columns [0, num_cols) of `head`; the others are unseen.
Plane make_plane(const float* rows, int64_t num_rows, const PackedColumns& columns, int64_t head,
                 int64_t num_cols, float scale, Scratch& scratch, int which = 0);
/// Makes the columns of bad blocks unseen, and with `cols_per_block` > 1 of their parts.
void hide_bad(const Sequence& sequence, const QueryBlock& block, const Plane& plane,
              int64_t cols_per_block = 1);
/// Makes what is not finite in columns [first, end) unseen: a method that looks at the query
/// block's own keys must do without the bad ones.
void hide_non_finite(const Plane& plane, int64_t first, int64_t end);
/// Scores by settings.aggregation, and keeps what reaches alpha_base of the best.
void judge_by_alpha(const Sequence& sequence, const QueryBlock& block, const Plane& plane,
                    Scratch& scratch, Verdict& verdict);
/// Keeps the smallest set of best scores that with the forced blocks and the blocks already kept
/// reaches `coverage` of all scores, `rest` included: shares that blocks outside [0, index) have.
void keep_coverage(const Sequence& sequence, const QueryBlock& block, double rest, double coverage,
                   Verdict& verdict);
/// settings.coverage, or the method's own.
double coverage_of(const SelectorSettings& settings);
/// `blocks` with the highest scores first, equals in order of their number.
void sort_by_score(const std::vector<float>& score, std::vector<int32_t>& blocks);

}  // namespace fovea::lab
