#include "fovea/model_io/weight_type.h"

#include <fmt/ranges.h>

#include "fovea/base/checked_math.h"
#include "fovea/base/error.h"

namespace fovea {
namespace {

constexpr int32_t kNone = -1;

struct TypeInfo {
  WeightType type;
  std::string_view name;  // also the safetensors dtype where that format has the type
  int64_t elements;
  int64_t bytes;
  int32_t gguf_number;
  bool in_safetensors;
};

// Pack sizes: ggml-common.h of ggml; the order follows the enum (checked by a test).
constexpr TypeInfo kTypes[] = {
    {WeightType::kF64, "F64", 1, 8, 28, true},
    {WeightType::kF32, "F32", 1, 4, 0, true},
    {WeightType::kF16, "F16", 1, 2, 1, true},
    {WeightType::kBF16, "BF16", 1, 2, 30, true},
    {WeightType::kF8E4M3, "F8_E4M3", 1, 1, kNone, true},
    {WeightType::kF8E5M2, "F8_E5M2", 1, 1, kNone, true},
    {WeightType::kI64, "I64", 1, 8, 27, true},
    {WeightType::kI32, "I32", 1, 4, 26, true},
    {WeightType::kI16, "I16", 1, 2, 25, true},
    {WeightType::kI8, "I8", 1, 1, 24, true},
    {WeightType::kU64, "U64", 1, 8, kNone, true},
    {WeightType::kU32, "U32", 1, 4, kNone, true},
    {WeightType::kU16, "U16", 1, 2, kNone, true},
    {WeightType::kU8, "U8", 1, 1, kNone, true},
    {WeightType::kBool, "BOOL", 1, 1, kNone, true},
    {WeightType::kQ4_0, "Q4_0", 32, 18, 2, false},
    {WeightType::kQ4_1, "Q4_1", 32, 20, 3, false},
    {WeightType::kQ5_0, "Q5_0", 32, 22, 6, false},
    {WeightType::kQ5_1, "Q5_1", 32, 24, 7, false},
    {WeightType::kQ8_0, "Q8_0", 32, 34, 8, false},
    {WeightType::kQ4_K, "Q4_K", 256, 144, 12, false},
    {WeightType::kQ5_K, "Q5_K", 256, 176, 13, false},
    {WeightType::kQ6_K, "Q6_K", 256, 210, 14, false},
    {WeightType::kMxFp4, "MXFP4", 32, 17, 39, false},
};

const TypeInfo& info(WeightType type) { return kTypes[static_cast<size_t>(type)]; }

}  // namespace

std::string_view weight_type_name(WeightType type) { return info(type).name; }

int64_t pack_elements(WeightType type) { return info(type).elements; }

int64_t pack_bytes(WeightType type) { return info(type).bytes; }

int64_t weight_bytes(WeightType type, int64_t count) {
  const TypeInfo& t = info(type);
  check_argument(count >= 0 && count % t.elements == 0,
                 "{} weights of type {} do not fill packs of {}", count, t.name, t.elements);
  return checked_mul(count / t.elements, t.bytes, "weight bytes");
}

std::optional<WeightType> weight_type_from_gguf(uint32_t number) {
  for (const TypeInfo& t : kTypes) {
    if (t.gguf_number != kNone && static_cast<uint32_t>(t.gguf_number) == number) return t.type;
  }
  return std::nullopt;
}

std::optional<WeightType> weight_type_from_safetensors(std::string_view name) {
  for (const TypeInfo& t : kTypes) {
    if (t.in_safetensors && t.name == name) return t.type;
  }
  return std::nullopt;
}

std::string shape_text(std::span<const int64_t> shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

}  // namespace fovea
