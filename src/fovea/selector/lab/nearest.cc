// Ours: a block is kept when for some query its best row comes within a gap of the best row of all
// other blocks. Logits are compared and nothing is summed: no exponentials, and a gap means the
// same at every length. A block that is some query's best has a negative gap, its lead over the
// second: were it 0, a budget could not rank the many blocks that are best for one of a block's
// queries.
#include <algorithm>
#include <numbers>

#include "fovea/selector/lab/witness_columns.h"

namespace fovea::lab {
namespace {

class Nearest final : public Method {
 public:
  explicit Nearest(const Sequence& sequence) : sequence_(sequence), columns_(sequence) {}

  void judge(const QueryBlock& block, Scratch& scratch, Verdict& verdict) const override {
    const Plane plane = columns_.largest_terms(block, scratch);
    plane_ops().max_of_rows(plane, scratch.of_row.data());
    plane_ops().max_of_cols(plane, scratch.of_row.data(), scratch.of_col.data());
    for (int64_t r = 0; r < block.num_rows; ++r) add_lead(plane, r, scratch);
    const float least = -sequence_.params.settings.nearest_gap * std::numbers::log2e_v<float>;
    for (size_t b = 0; b < verdict.score.size(); ++b) {
      verdict.score[b] = scratch.of_col[b];
      verdict.keep[b] = scratch.of_col[b] >= least ? 1 : 0;
    }
  }

 private:
  // Raises the score of row r's best block to what it leads by.
  static void add_lead(const Plane& plane, int64_t r, Scratch& scratch) {
    const float* const row = plane.row(r);
    const float most = scratch.of_row[static_cast<size_t>(r)];
    float second = 2 * kUnseen;
    int64_t best = -1;
    for (int64_t c = 0; c < plane.num_cols(); ++c) {
      if (best < 0 && row[c] == most) {
        best = c;
      } else {
        second = std::max(second, row[c]);
      }
    }
    float& score = scratch.of_col[static_cast<size_t>(best)];
    score = std::max(score, most - second);
  }

  const Sequence& sequence_;
  const WitnessColumns columns_;
};

}  // namespace

std::unique_ptr<Method> make_nearest(const Sequence& sequence) {
  return std::make_unique<Nearest>(sequence);
}

}  // namespace fovea::lab
