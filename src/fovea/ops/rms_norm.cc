#include "fovea/ops/rms_norm.h"

#include <cmath>

#include "fovea/ops/cpu/row_kernels.h"
#include "fovea/ops/cpu/rows.h"

namespace fovea {

bool rms_norm(const TensorView& x, const TensorView& weight, float eps, const TensorView& out) {
  cpu::check_rows(x, "x", false);
  const int64_t dim = x.shape[static_cast<size_t>(x.rank - 1)];
  check_argument(weight.dtype == DType::kF32 && weight.rank == 1 && weight.shape[0] == dim,
                 "weight must be f32[{}], got {}", dim, weight.describe());
  check_argument(eps >= 0, "eps must not be negative, got {}", eps);
  cpu::check_rows(out, "out", true);
  cpu::check_same_shape(x, "x", out, "out");
  const cpu::RowKernels& kernels = cpu::row_kernels();
  float total = 0;  // finite only if every row was
  cpu::for_each_row(x, out, [&](int64_t from, int64_t to) {
    const float* row = x.as<float>() + from;
    total +=
        0.0f *
        (out.dtype == DType::kF32
             ? kernels.rms_norm_f32(row, weight.as<float>(), eps, dim, out.as<float>() + to)
             : kernels.rms_norm_bf16(row, weight.as<float>(), eps, dim, out.as<uint16_t>() + to));
  });
  return std::isfinite(total);
}

}  // namespace fovea
