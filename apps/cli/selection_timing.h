// Times block selection alone, and with attention on what it selects, as benchmarks/kernel_bench.h
// does attention.
#pragma once

#include <functional>
#include <memory>

#include "benchmarks/kernel_bench.h"
#include "fovea/selector/selection_buffer.h"

namespace fovea::cli {

/// Statistics, selection and attention of one layer's whole prompt over random queries and keys,
/// contiguous; shape.density, has_periphery and page_size are not used. The constructor and the
/// steps throw as the functions they call.
class SelectionWork {
 public:
  SelectionWork(const KernelShape& shape, const SelectorSettings& settings, const Context& context);

  /// Of all pages of the prompt, which a prefill computes once.
  void compute_statistics() const;
  void select();
  /// Reads what select() selected.
  void attend(bool has_periphery) const;

  /// Of one selection.
  struct Lists {
    double density = 1;
    int64_t bytes = 0;
  };
  /// Selects and waits. From then on two calls of select() allocate nothing, which the capture of
  /// the second needs.
  Lists measure_lists();

 private:
  Context context_;
  AttentionWork attention_;  // its tensors
  BlockStats stats_;
  Tensor zero_;  // where the only sequence's statistics begin
  SelectorParams params_;
  std::unique_ptr<SelectionBuffer> buffer_;
  const BlockSelectionView* selection_ = nullptr;
};

/// How something is timed.
using Timer = std::function<Timing(const std::function<void()>&)>;

struct SelectionMeasurement {
  Timing selection;
  Timing statistics;
  SelectionWork::Lists lists;
};

/// Times the two steps before attention.
SelectionMeasurement measure_selection(SelectionWork& work, const Timer& timer);

}  // namespace fovea::cli
