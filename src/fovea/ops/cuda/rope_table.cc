#include "fovea/ops/cuda/rope_table.h"

#include "fovea/ops/cuda/row_kernels.h"
#include "fovea/tensor/cuda/device.h"

namespace fovea::cuda {

void fill_rope_table(std::span<const double> frequencies, const int64_t* first_position,
                     int64_t num_rows, float* cos, float* sin, const Context& context) {
  if (num_rows == 0) return;
  const DeviceScope scope(context);
  launch_rope_table(frequencies, first_position, num_rows, cos, sin, stream_of(context));
}

}  // namespace fovea::cuda
