// Selectors that are measured, not yet served: relatives of ours from papers, and ideas of our own.
#pragma once

#include "fovea/selector/block_selector.h"

namespace fovea {

/// Named "cpu_lab": on the CPU, in f32, with a plane of logits [block_size, blocks before] for each
/// thread. It reads the keys themselves where a method wants more than pages keep.
const SelectorBackend& lab_selector();

}  // namespace fovea
