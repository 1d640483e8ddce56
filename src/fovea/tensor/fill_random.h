// Random contents for tensors on any device.
#pragma once

#include <cstdint>

#include "fovea/base/context.h"
#include "fovea/tensor/tensor.h"

namespace fovea {

/// Element i of a dense f32 or bf16 tensor becomes bound * random_value(seed, first_index + i), on
/// the CPU by the calling thread, on a GPU in stream order. Throws kInvalidArgument on other types
/// and on tensors that are not dense.
void fill_random(const TensorView& tensor, float bound, uint64_t seed, uint64_t first_index,
                 const Context& context);

}  // namespace fovea
