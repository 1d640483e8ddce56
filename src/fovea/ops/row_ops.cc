#include "fovea/ops/row_ops.h"

#include "fovea/ops/cpu/cpu_row_ops.h"
#include "fovea/tensor/device_memory.h"
#ifdef FOVEA_WITH_CUDA
#include "fovea/ops/cuda/cuda_row_ops.h"
#endif

namespace fovea {

std::unique_ptr<RowOps> make_row_ops([[maybe_unused]] DType compute_dtype, const Context& context) {
  check_usable(context.device);
#ifdef FOVEA_WITH_CUDA
  if (context.device.type == DeviceType::kCuda) return make_cuda_row_ops(compute_dtype, context);
#endif
  return std::make_unique<CpuRowOps>(context);
}

}  // namespace fovea
