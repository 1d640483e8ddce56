// The loops of the small operations, compiled once per instruction set and chosen at run time.
#pragma once

#include <cstdint>

namespace fovea::cpu {

/// Columns of a weight panel, see PackedWeights.
constexpr int64_t kPanelColumns = 64;

/// What stands out of a row of logits.
struct LeadingLogits {
  int64_t best = 0;    // where the highest is, the first one on a tie
  float second = 0;    // the highest of the others; minus infinity when there are none
  double exp_sum = 0;  // of exp(x - highest); NaN when x holds a NaN or plus infinity
};

/// Pointers need no alignment; out may be x unless said otherwise. bf16 travels as uint16_t.
struct RowKernels {
  const char* name;

  /// out = x / sqrt(mean(x^2) + eps) * weight. Returns mean(x^2): not finite when x is not.
  float (*rms_norm_f32)(const float* x, const float* weight, float eps, int64_t n, float* out);
  float (*rms_norm_bf16)(const float* x, const float* weight, float eps, int64_t n, uint16_t* out);
  /// sum += x.
  void (*add)(const float* x, int64_t n, float* sum);
  /// out = silu(gate) * up, and gelu_tanh(gate) * up.
  void (*silu_mul_f32)(const float* gate, const float* up, int64_t n, float* out);
  void (*silu_mul_bf16)(const float* gate, const float* up, int64_t n, uint16_t* out);
  void (*gelu_mul_f32)(const float* gate, const float* up, int64_t n, float* out);
  void (*gelu_mul_bf16)(const float* gate, const float* up, int64_t n, uint16_t* out);
  /// See GateFunction::kClampedSwiglu.
  void (*clamped_swiglu_f32)(const float* gate, const float* up, int64_t n, float* out);
  void (*clamped_swiglu_bf16)(const float* gate, const float* up, int64_t n, uint16_t* out);
  /// Rotates pairs (x[i], x[half + i]) by the angle whose cos[i], sin[i] are given. out is not x.
  void (*rope_f32)(const float* x, const float* cos, const float* sin, int64_t half, float* out);
  void (*rope_bf16)(const float* x, const float* cos, const float* sin, int64_t half,
                    uint16_t* out);
  /// Rounds to nearest even; NaN stays NaN.
  void (*to_bf16)(const float* x, int64_t n, uint16_t* out);
  /// 0 when all of x is finite, else NaN.
  float (*finite_mark)(const float* x, int64_t n);

  /// The highest of n > 0 values; NaN when there is one.
  float (*highest)(const float* x, int64_t n);
  /// Of n > 0 values.
  LeadingLogits (*leading_logits)(const float* x, int64_t n);
  float (*dot)(const float* x, const float* y, int64_t n);
  /// out[c] = sum_k x[k] * panel[k][c] for one panel of weights: f32 [depth][64], or bf16 in pairs
  /// [depth / 2][64][2] with an even depth.
  void (*gemv_panel_f32)(const float* panel, const float* x, int64_t depth, float* out);
  void (*gemv_panel_bf16)(const uint16_t* panel, const float* x, int64_t depth, float* out);
};

/// The fastest set that this processor runs.
const RowKernels& row_kernels();

// One set per instruction set; the last two only on x86-64.
extern const RowKernels kRowKernelsPortable;
extern const RowKernels kRowKernelsAvx2;
extern const RowKernels kRowKernelsAvx512;

}  // namespace fovea::cpu
