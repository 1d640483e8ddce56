#include "fovea/tensor/fill_random.h"

#include "fovea/base/error.h"
#include "fovea/tensor/bfloat16.h"
#include "fovea/tensor/device_memory.h"
#include "fovea/tensor/random_value.h"
#ifdef FOVEA_WITH_CUDA
#include "fovea/tensor/cuda/fill_random_cuda.h"
#endif

namespace fovea {

void fill_random(const TensorView& tensor, float bound, uint64_t seed, uint64_t first_index,
                 const Context& context) {
  check_copy(tensor, tensor);  // dense
  check_argument(tensor.dtype == DType::kF32 || tensor.dtype == DType::kBF16,
                 "random contents are f32 or bf16, not {}", tensor.describe());
  check_usable(tensor.device);
#ifdef FOVEA_WITH_CUDA
  if (tensor.device.type == DeviceType::kCuda) {
    cuda::fill_random(tensor, bound, seed, first_index, context);
    return;
  }
#else
  static_cast<void>(context);
#endif
  for (int64_t i = 0; i < tensor.num_elements(); ++i) {
    const float value = bound * random_value(seed, first_index + static_cast<uint64_t>(i));
    if (tensor.dtype == DType::kF32) {
      tensor.as<float>()[i] = value;
    } else {
      tensor.as<BFloat16>()[i] = to_bfloat16(value);
    }
  }
}

}  // namespace fovea
