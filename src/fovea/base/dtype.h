// Element types that a TensorView can carry. Block-quantised file types live in model_io.
#pragma once

#include <cstdint>
#include <string_view>

namespace fovea {

enum class DType { kF32, kF16, kBF16, kF8E4M3, kI8, kI32, kI64 };

/// Bytes of one element.
constexpr int64_t dtype_bytes(DType dtype) {
  switch (dtype) {
    case DType::kF32:
    case DType::kI32:
      return 4;
    case DType::kF16:
    case DType::kBF16:
      return 2;
    case DType::kF8E4M3:
    case DType::kI8:
      return 1;
    case DType::kI64:
      return 8;
  }
  return 0;
}

/// Name as it appears in JSON and on the command line, for example "bf16".
constexpr std::string_view dtype_name(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return "f32";
    case DType::kF16:
      return "f16";
    case DType::kBF16:
      return "bf16";
    case DType::kF8E4M3:
      return "f8e4m3";
    case DType::kI8:
      return "i8";
    case DType::kI32:
      return "i32";
    case DType::kI64:
      return "i64";
  }
  return "unknown";
}

}  // namespace fovea
