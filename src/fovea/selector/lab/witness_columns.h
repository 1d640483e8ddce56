// The rows that stand for a block with witnesses: the odd keys themselves, and the mean of the
// rest.
#pragma once

#include "fovea/selector/lab/method.h"

namespace fovea::lab {

class WitnessColumns {
 public:
  explicit WitnessColumns(const Sequence& sequence);

  /// log2 of each block's estimated attention mass, [rows, block.index].
  Plane masses(const QueryBlock& block, Scratch& scratch) const {
    return fold(plane_ops().add_masses, block, scratch);
  }
  /// The largest term of that sum, as a logarithm: no exponentials.
  Plane largest_terms(const QueryBlock& block, Scratch& scratch) const {
    return fold(plane_ops().take_larger, block, scratch);
  }

 private:
  Plane fold(void (*add)(const Plane& from, float bias, const Plane& into), const QueryBlock& block,
             Scratch& scratch) const;

  const Sequence& sequence_;
  PackedColumns rest_mean_;
  std::vector<PackedColumns> witnesses_;
};

}  // namespace fovea::lab
