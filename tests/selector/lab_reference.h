// The lab's selectors written down plainly: double, token by token, from their papers' rules.
#pragma once

#include "fovea/selector/block_selector.h"
#include "fovea/selector/selection_rules.h"

namespace fovea::testing {

/// The list of q head `q_head` and query block `q_block` of `plan`. Precondition: a method of the
/// lab, or a variant of `witness` that it computes; keys and queries are finite.
std::vector<int32_t> lab_reference_list(const SelectorParams& params, const SequencePlan& plan,
                                        int64_t q_head, int64_t q_block);

}  // namespace fovea::testing
