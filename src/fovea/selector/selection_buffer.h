// Selections where attention wants them: in memory of the device, without waiting for their
// accounting.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "fovea/selector/block_selector.h"

namespace fovea {

/// What one selection kept, for accounting.
struct SelectionLengths {
  int64_t num_q_heads = 0;
  int64_t num_q_blocks = 0;      // a GPU's has room for more lists than there are query blocks
  std::vector<int32_t> len;      // [num_q_heads, num_q_blocks]; past the last block: anything
  int64_t forced_pairs = 0;      // as in BlockSelection
  int64_t non_finite_pairs = 0;  // as in BlockSelection
  int64_t skipped_pairs = 0;     // as in BlockSelection
};

SelectionLengths lengths_of(const BlockSelection& selection);

/// What a SelectionBuffer will be asked for.
struct SelectionShape {
  int64_t num_q_heads = 0, num_kv_heads = 0, head_dim = 0;
  int64_t rows = 0;            // of a selection at most
  int64_t kv_len = 0;          // likewise
  int64_t num_selections = 0;  // between two calls of take_lengths()
};
/// Bytes of lists, and of what selecting takes for a moment, at most; 0 on the CPU, where they are
/// ordinary vectors.
int64_t planned_selection_bytes(const SelectorSettings& settings, const SelectionShape& shape,
                                Device device);

class SelectionBuffer {
 public:
  virtual ~SelectionBuffer() = default;
  /// Selects for one sequence; the lists are memory of the context's device and valid until the
  /// next call. What a GPU has no kernel for, the CPU selects. Throws as select_blocks().
  virtual const BlockSelectionView& select(const SelectorParams& params) = 0;
  /// The lengths of every selection since the last call, in order. Waits for a GPU.
  virtual std::vector<SelectionLengths> take_lengths() = 0;
  /// Bytes of the lists.
  virtual int64_t size_bytes() const = 0;
  /// What a user should know of how the last selection was made; mostly empty.
  virtual const std::string& note() const = 0;
};

std::unique_ptr<SelectionBuffer> make_selection_buffer(const Context& context);

}  // namespace fovea
