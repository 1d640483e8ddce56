// Times block selection alone, as benchmarks/kernel_bench.h does attention.
#pragma once

#include "benchmarks/kernel_bench.h"
#include "fovea/selector/block_selector.h"

namespace fovea::cli {

struct SelectionMeasurement {
  Timing selection;
  Timing statistics;   // of all pages of the prompt, which a prefill computes once
  double density = 1;  // of the lists
  int64_t list_bytes = 0;
};

/// Times select_blocks() and compute_block_stats() for one layer's whole prompt of normally
/// distributed queries and keys; shape.density and shape.has_periphery are not used. Throws as
/// select_blocks().
SelectionMeasurement measure_selection(const KernelShape& shape, const SelectorSettings& settings,
                                       const Context& context, double min_seconds);

}  // namespace fovea::cli
