// Selection on the GPU; includes no CUDA header. Built with FOVEA_CUDA only.
#pragma once

#include <cstdint>
#include <memory>

#include "fovea/selector/block_selector.h"

namespace fovea {

/// A selection in GPU memory, with room for any call that its sizes allow. Moves, does not copy.
class DeviceSelection {
 public:
  struct Sizes {
    int64_t num_q_heads = 0;
    int64_t batch_size = 0;
    int64_t max_q_blocks = 0;   // of all sequences together
    int64_t max_kv_blocks = 0;  // of one sequence
    int64_t pool_entries = 0;   // for lists that are neither empty nor everything
  };
  /// Bytes of GPU memory that one of these sizes holds.
  static int64_t bytes_for(const Sizes& sizes);
  /// Throws kOutOfMemory saying how much was asked for what.
  DeviceSelection(const Sizes& sizes, const Context& context);
  ~DeviceSelection();
  DeviceSelection(DeviceSelection&&) noexcept;
  DeviceSelection& operator=(DeviceSelection&&) noexcept;

  /// Of the last selection, for AttentionParams. Lists that did not fit the pool hold everything.
  const BlockSelectionView& view() const;
  /// Bytes of GPU memory held, lists included.
  int64_t size_bytes() const;
  /// Waits for the GPU and copies lists and accounting, in (q head, query block) order. Throws
  /// kOutOfMemory naming the entries needed when lists did not fit the pool.
  void download(BlockSelection& selection) const;
  /// Copies within the GPU, in stream order: the lengths of all lists, [num_q_heads, num_q_blocks]
  /// of the view, and {forced pairs, non-finite pairs}.
  void copy_lengths(int32_t* lengths, int64_t* pairs) const;

 private:
  friend class CudaSelector;
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// "cuda_sm90": every method but `oracle`, aggregation sum, bf16 and f16, block_size and head_dim
/// 64, 128 and 256, thresholds and budget. All pointers of SelectorParams are memory of the
/// context's GPU; lengths and tables are read there and trusted. Centroids, witnesses and radii
/// decide as on the CPU up to the rounding of scores; the same inputs give the same lists whatever
/// the chunk or batch.
class CudaSelector final : public SelectorBackend {
 public:
  std::string_view name() const override { return "cuda_sm90"; }
  std::string why_unsupported(const SelectorParams& params, const Context& context) const override;
  /// Waits for the GPU, to bring the lists to the CPU.
  void run(const SelectorParams& params, const Context& context,
           BlockSelection& selection) const override;
  /// Leaves the lists on the GPU; nothing waits. Precondition: as of run(). Throws kInvalidArgument
  /// when `selection` is too small.
  void run(const SelectorParams& params, const Context& context, DeviceSelection& selection) const;
  /// Sizes for run(): the pool holds `density` of the causal pairs of one prompt as long as all.
  static DeviceSelection::Sizes sizes_for(const SelectorParams& params, double density);
  /// Bytes that a call with such sizes takes for a moment.
  static int64_t scratch_bytes(const SelectorSettings& settings, int64_t num_kv_heads,
                               int64_t head_dim, const DeviceSelection::Sizes& sizes);
};

const CudaSelector& cuda_selector();

}  // namespace fovea
