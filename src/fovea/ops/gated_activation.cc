#include "fovea/ops/gated_activation.h"

#include "fovea/ops/cpu/row_kernels.h"
#include "fovea/ops/cpu/rows.h"

namespace fovea {

void gated_activation(GateFunction function, const TensorView& gate_up, const TensorView& out) {
  cpu::check_rows(gate_up, "gate_up", false);
  cpu::check_rows(out, "out", true);
  check_argument(gate_up.rank == 2 && out.rank == 2 && gate_up.shape[0] == out.shape[0] &&
                     gate_up.shape[1] == 2 * out.shape[1],
                 "gate_up must be twice as wide as out, got {} and {}", gate_up.describe(),
                 out.describe());
  const cpu::RowKernels& kernels = cpu::row_kernels();
  const int64_t mlp_dim = out.shape[1];
  auto* to_f32 = kernels.silu_mul_f32;
  auto* to_bf16 = kernels.silu_mul_bf16;
  if (function == GateFunction::kGeluTanh) {
    to_f32 = kernels.gelu_mul_f32;
    to_bf16 = kernels.gelu_mul_bf16;
  } else if (function == GateFunction::kClampedSwiglu) {
    to_f32 = kernels.clamped_swiglu_f32;
    to_bf16 = kernels.clamped_swiglu_bf16;
  }
  cpu::for_each_row(gate_up, out, [&](int64_t from, int64_t to) {
    const float* gate = gate_up.as<float>() + from;
    if (out.dtype == DType::kF32) {
      to_f32(gate, gate + mlp_dim, mlp_dim, out.as<float>() + to);
    } else {
      to_bf16(gate, gate + mlp_dim, mlp_dim, out.as<uint16_t>() + to);
    }
  });
}

}  // namespace fovea
