#include "fovea/ops/cuda/quantize_weights.h"

#include "fovea/ops/cuda/quantize.h"
#include "fovea/tensor/cuda/device.h"

namespace fovea::cuda {

void quantize_matrix(const TensorView& matrix, const TensorView& quantized,
                     const TensorView& scales, const Context& context) {
  const DeviceScope scope(context);
  launch_quantize_matrix(matrix, quantized.data, scales.as<float>(), stream_of(context));
}

}  // namespace fovea::cuda
