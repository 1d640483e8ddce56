// SelectionBuffer of a GPU; includes no CUDA header. Built with FOVEA_CUDA only.
#pragma once

#include <memory>

#include "fovea/selector/selection_buffer.h"

namespace fovea {

/// Lists stay on the GPU; so do their lengths, until they are asked for.
std::unique_ptr<SelectionBuffer> make_cuda_selection_buffer(const Context& context);

/// See planned_selection_bytes().
int64_t planned_cuda_selection_bytes(const SelectorSettings& settings, const SelectionShape& shape);

}  // namespace fovea
