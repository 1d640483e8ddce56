// Attention between means: of a query block's rows and of each block's keys.
#pragma once

#include "fovea/selector/lab/method.h"

namespace fovea::lab {

class PooledKeys {
 public:
  explicit PooledKeys(const Sequence& sequence);

  /// Logits, base 2, of blocks [0, block.index] for the mean of the block's rows: its own block
  /// takes part with the keys it has. One row; bad blocks are unseen.
  Plane logits(const QueryBlock& block, Scratch& scratch) const;

 private:
  const Sequence& sequence_;
  const PackedColumns means_;
};

/// Turns a row of base-2 logits into probabilities that sum to 1.
void to_probabilities(const Plane& row, int64_t count);

}  // namespace fovea::lab
