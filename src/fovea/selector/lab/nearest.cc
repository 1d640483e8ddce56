// Ours: a block is kept when for some query its best row comes within a gap of that query's best
// row of all blocks. Logits are compared and nothing is summed: no exponentials, and a gap means
// the same at every length.
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
    const float least = -sequence_.params.settings.nearest_gap * std::numbers::log2e_v<float>;
    for (size_t b = 0; b < verdict.score.size(); ++b) {
      verdict.score[b] = scratch.of_col[b];
      verdict.keep[b] = scratch.of_col[b] >= least ? 1 : 0;
    }
  }

 private:
  const Sequence& sequence_;
  const WitnessColumns columns_;
};

}  // namespace

std::unique_ptr<Method> make_nearest(const Sequence& sequence) {
  return std::make_unique<Nearest>(sequence);
}

}  // namespace fovea::lab
