// Element types of model files: plain ones, and those that pack a group of weights with their
// scale.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace fovea {

enum class WeightType {
  kF64,
  kF32,
  kF16,
  kBF16,
  kF8E4M3,
  kF8E5M2,
  kI64,
  kI32,
  kI16,
  kI8,
  kU64,
  kU32,
  kU16,
  kU8,
  kBool,
  kQ4_0,
  kQ4_1,
  kQ5_0,
  kQ5_1,
  kQ8_0,
  kQ4_K,
  kQ5_K,
  kQ6_K,
  kMxFp4,
};

/// Name as files spell it, for example "BF16", "Q4_K".
std::string_view weight_type_name(WeightType type);

/// Weights in one pack: 1 for plain types, 32 or 256 for quantised ones. Packs never cross a row.
int64_t pack_elements(WeightType type);

/// Bytes of one pack.
int64_t pack_bytes(WeightType type);

/// Bytes of `count` weights. Throws kInvalidArgument when `count` is negative or no multiple of
/// pack_elements(type), or the bytes pass 64 bits.
int64_t weight_bytes(WeightType type, int64_t count);

/// The type with a GGUF number (ggml_type), nothing when the number is not one of ours.
std::optional<WeightType> weight_type_from_gguf(uint32_t number);

/// The type with a safetensors dtype name, nothing when the name is not one of ours.
std::optional<WeightType> weight_type_from_safetensors(std::string_view name);

/// A tensor as a file holds it. `bytes` points into the mapped file, with no promise of alignment.
struct FileTensor {
  std::string name;
  WeightType type = WeightType::kF32;
  std::vector<int64_t> shape;  // slowest first; empty for a scalar
  std::span<const std::byte> bytes;
};

/// "[4096, 256]".
std::string shape_text(std::span<const int64_t> shape);

}  // namespace fovea
