// fill_random() on a GPU; includes no CUDA header.
#pragma once

#include <cstdint>

#include "fovea/tensor/tensor.h"

namespace fovea::cuda {

void fill_random(const TensorView& tensor, float bound, uint64_t seed, uint64_t first_index,
                 const Context& context);

}  // namespace fovea::cuda
