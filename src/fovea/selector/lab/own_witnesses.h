// Witnesses that pages do not keep: chosen by another distance, rounded to f8e4m3, or none where a
// block is calm. Computed from the keys, for every block at every call.
#pragma once

#include <span>

#include "fovea/selector/selection_rules.h"

namespace fovea::lab {

class OwnWitnesses {
 public:
  /// Precondition: varies_witnesses(params.settings).
  OwnWitnesses(const SelectorParams& params, std::span<const SequencePlan> plans,
               const Context& context);
  /// The call with statistics that hold these witnesses, and settings as if pages kept them.
  const SelectorParams& params() const { return params_; }

 private:
  Tensor witness_, rest_mean_;
  SelectorParams params_;
};

}  // namespace fovea::lab
