#include "fovea/ops/row_ops.h"

#include "fovea/ops/cpu/cpu_row_ops.h"
#include "fovea/tensor/device_memory.h"

namespace fovea {

std::unique_ptr<RowOps> make_row_ops(DType, const Context& context) {
  check_usable(context.device);
  return std::make_unique<CpuRowOps>(context);
}

}  // namespace fovea
