#include "fovea/ops/elementwise.h"

#include <cstring>

#include "fovea/ops/cpu/row_kernels.h"
#include "fovea/ops/cpu/rows.h"

namespace fovea {

void add_rows(const TensorView& x, const TensorView& sum) {
  cpu::check_rows(x, "x", false);
  cpu::check_rows(sum, "sum", false);
  cpu::check_same_shape(x, "x", sum, "sum");
  const cpu::RowKernels& kernels = cpu::row_kernels();
  const int64_t dim = x.shape[static_cast<size_t>(x.rank - 1)];
  cpu::for_each_row(x, sum, [&](int64_t from, int64_t to) {
    kernels.add(x.as<float>() + from, dim, sum.as<float>() + to);
  });
}

void add_bias(const TensorView& bias, const TensorView& x) {
  cpu::check_rows(x, "x", false);
  const int64_t dim = x.shape[static_cast<size_t>(x.rank - 1)];
  check_argument(bias.dtype == DType::kF32 && bias.rank == 1 && bias.shape[0] == dim,
                 "bias must be f32[{}], got {}", dim, bias.describe());
  const cpu::RowKernels& kernels = cpu::row_kernels();
  cpu::for_each_row(
      x, x, [&](int64_t row, int64_t) { kernels.add(bias.as<float>(), dim, x.as<float>() + row); });
}

void convert_rows(const TensorView& x, const TensorView& out) {
  cpu::check_rows(x, "x", false);
  cpu::check_rows(out, "out", true);
  cpu::check_same_shape(x, "x", out, "out");
  const cpu::RowKernels& kernels = cpu::row_kernels();
  const int64_t dim = x.shape[static_cast<size_t>(x.rank - 1)];
  cpu::for_each_row(x, out, [&](int64_t from, int64_t to) {
    if (out.dtype == DType::kF32) {
      std::memcpy(out.as<float>() + to, x.as<float>() + from,
                  static_cast<size_t>(dim) * sizeof(float));
    } else {
      kernels.to_bf16(x.as<float>() + from, dim, out.as<uint16_t>() + to);
    }
  });
}

bool all_finite(const TensorView& x) {
  cpu::check_rows(x, "x", false);
  const cpu::RowKernels& kernels = cpu::row_kernels();
  const int64_t dim = x.shape[static_cast<size_t>(x.rank - 1)];
  float marks = 0;
  cpu::for_each_row(
      x, x, [&](int64_t row, int64_t) { marks += kernels.finite_mark(x.as<float>() + row, dim); });
  return marks == 0;
}

}  // namespace fovea
