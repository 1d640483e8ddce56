// Selections for a GPU that the CPU makes, where the GPU has no kernel for them; includes no CUDA
// header. Built with FOVEA_CUDA only.
#pragma once

#include "fovea/selector/block_selector.h"

namespace fovea {

/// Copies of what a selector reads, and the lists that come back. Every call moves q, all pages' K
/// and statistics to the CPU and waits for the GPU: exact, and slow.
class HostSelection {
 public:
  explicit HostSelection(const Context& context) : context_(context) {}

  /// Selects as select_blocks() does on the CPU, with all of its threads. `params` point to memory
  /// of the context's GPU, and so does the view, which is valid until the next call.
  const BlockSelectionView& select(const SelectorParams& params);
  /// The last selection, on the CPU.
  const BlockSelection& on_cpu() const { return selection_; }
  /// Bytes of the GPU's memory held.
  int64_t size_bytes() const;

 private:
  SelectorParams copy_to_cpu(const SelectorParams& params);

  Context context_;
  // Copies on the CPU.
  Tensor q_, k_, centroid_, radius_, witness_, rest_mean_, non_finite_;
  Tensor q_offsets_, kv_lens_, prompt_lens_, page_table_, kv_offsets_, block_offsets_;
  BlockSelection selection_;
  // Lists on the GPU.
  Tensor list_q_block_offsets_, list_begin_, list_len_, list_blocks_;
  BlockSelectionView view_;
};

}  // namespace fovea
