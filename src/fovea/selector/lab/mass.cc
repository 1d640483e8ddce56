// Ours: probabilities of blocks as witnesses estimate them, each row's summing to 1 over the blocks
// before the query block. A probability means the same at every length, where a share of the best
// score (alpha) does not.
#include <algorithm>
#include <cmath>

#include "fovea/selector/lab/witness_columns.h"

namespace fovea::lab {
namespace {

// `mass`: the smallest set of blocks that holds a share of the attention, averaged over the rows;
// or of a power of it, by which rows that look at little count for more.
class Mass final : public Method {
 public:
  explicit Mass(const Sequence& sequence) : sequence_(sequence), columns_(sequence) {}

  void judge(const QueryBlock& block, Scratch& scratch, Verdict& verdict) const override {
    const Plane plane = columns_.masses(block, scratch);
    plane_ops().sum_of_rows(plane, scratch.of_row.data());
    plane_ops().add_probabilities(plane, scratch.of_row.data(),
                                  sequence_.params.settings.mass_power, scratch.of_col.data());
    for (size_t b = 0; b < verdict.score.size(); ++b) {
      verdict.score[b] = scratch.of_col[b] / static_cast<float>(block.num_rows);
    }
    keep_coverage(sequence_, block, 0, coverage_of(sequence_.params.settings), verdict);
  }

 private:
  const Sequence& sequence_;
  const WitnessColumns columns_;
};

// `peak`: every block to which some row gives a certain probability.
class Peak final : public Method {
 public:
  explicit Peak(const Sequence& sequence) : sequence_(sequence), columns_(sequence) {}

  void judge(const QueryBlock& block, Scratch& scratch, Verdict& verdict) const override {
    const Plane plane = columns_.masses(block, scratch);
    plane_ops().sum_of_rows(plane, scratch.of_row.data());
    plane_ops().max_of_cols(plane, scratch.of_row.data(), scratch.of_col.data());
    const float least = std::log2(sequence_.params.settings.least_peak);
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

std::unique_ptr<Method> make_mass(const Sequence& sequence) {
  return std::make_unique<Mass>(sequence);
}

std::unique_ptr<Method> make_peak(const Sequence& sequence) {
  return std::make_unique<Peak>(sequence);
}

}  // namespace fovea::lab
