// Judges lists of a backend against the double reference's.
#pragma once

#include "fovea/selector/block_selector.h"

namespace fovea::testing {

struct ListTolerance {
  /// In nats. A backend and the reference may part where the scores of two blocks of which a budget
  /// keeps one, or a score and its threshold, lie closer than this.
  double near_tie;
  /// Share of the lists that may differ so, besides one.
  double share;
};

/// Expects `got` to be the reference's selection for `params` (memory of the CPU), near-ties aside.
void expect_reference_lists(const SelectorParams& params, const BlockSelection& got,
                            ListTolerance tolerance);

}  // namespace fovea::testing
