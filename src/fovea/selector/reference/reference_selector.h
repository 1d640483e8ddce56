// The oracle of the selectors: plain loops in double, never optimised.
#pragma once

#include <vector>

#include "fovea/selector/block_selector.h"
#include "fovea/selector/selection_rules.h"

namespace fovea {

/// Named "reference"; runs every method but the lab's on the CPU.
const SelectorBackend& reference_selector();

/// What the decision of one (q head, query block) rests on.
struct ReferenceScores {
  /// Natural logarithm of each branch's score of blocks 0 ... q_block - 1: one branch, or two
  /// (base, rescue) for `rescue`. Entries of non-finite blocks mean nothing.
  std::vector<std::vector<double>> branches;
  std::vector<bool> non_finite;  // per block; all true when the query is not finite or too large
};

/// Scores of query block `q_block` of `plan` for q head `q_head`, or for all that share its list.
/// Precondition: the method scores,
/// and check_selector_params passed.
ReferenceScores reference_scores(const SelectorParams& params, const SequencePlan& plan,
                                 int64_t q_head, int64_t q_block);

}  // namespace fovea
