// From the bytes of a model file to f32 weights.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "fovea/model_io/weight_type.h"

namespace fovea {

/// Whether dequantize() knows `type`: F32, F16, BF16, F8_E4M3, MXFP4 and the Qx types; integers are
/// not weights.
bool can_dequantize(WeightType type);

/// Converts out.size() weights from `bytes` to f32.
/// `bytes` needs no alignment and holds exactly weight_bytes(type, out.size()).
/// Throws kInvalidArgument on a wrong size, kUnsupported when can_dequantize(type) is false.
/// Source: the formats of ggml (ggml-common.h, gguf-py/gguf/quants.py); FP8: OCP 8-bit E4M3.
void dequantize(WeightType type, std::span<const std::byte> bytes, std::span<float> out);

/// Codes that share an exponent in MXFP4.
constexpr int64_t kMxFp4Group = 32;

/// MXFP4 as safetensors keep it: two codes a byte, the first in the low bits, and one exponent for
/// each 32. Throws kInvalidArgument on sizes that do not fit. An exponent of 255 gives NaN.
/// Source: OCP Microscaling Formats 1.0.
void dequantize_mxfp4(std::span<const std::byte> codes, std::span<const std::byte> exponents,
                      std::span<float> out);

/// Index of the first NaN or infinity in `values`, -1 when all are finite.
int64_t find_non_finite(std::span<const float> values);

}  // namespace fovea
