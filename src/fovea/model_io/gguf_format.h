// Numbers of GGUF's metadata as they lie in a file; private to the reader.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>

#include "fovea/model_io/gguf.h"

static_assert(std::endian::native == std::endian::little, "GGUF numbers are read as they lie");

namespace fovea {

/// Types of metadata values, by the numbers of the format.
enum GgufType : uint32_t {
  kGgufUint8,
  kGgufInt8,
  kGgufUint16,
  kGgufInt16,
  kGgufUint32,
  kGgufInt32,
  kGgufFloat32,
  kGgufBool,
  kGgufString,
  kGgufArray,
  kGgufUint64,
  kGgufInt64,
  kGgufFloat64,
  kNumGgufTypes
};

inline constexpr std::string_view kGgufTypeNames[kNumGgufTypes] = {
    "uint8", "int8",   "uint16", "int16",  "uint32", "int32",  "float32",
    "bool",  "string", "array",  "uint64", "int64",  "float64"};
/// 0: not of one size.
inline constexpr int64_t kGgufTypeBytes[kNumGgufTypes] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};

/// Element `index` of packed elements of type T.
template <typename T>
T load_gguf(std::span<const std::byte> bytes, int64_t index) {
  T value;
  std::memcpy(&value, bytes.data() + static_cast<size_t>(index) * sizeof(T), sizeof(T));
  return value;
}

/// A number of the file as the widest type of its kind.
inline GgufValue load_gguf_number(uint32_t type, std::span<const std::byte> bytes, int64_t index) {
  switch (type) {
    case kGgufUint8:
      return int64_t{load_gguf<uint8_t>(bytes, index)};
    case kGgufInt8:
      return int64_t{load_gguf<int8_t>(bytes, index)};
    case kGgufUint16:
      return int64_t{load_gguf<uint16_t>(bytes, index)};
    case kGgufInt16:
      return int64_t{load_gguf<int16_t>(bytes, index)};
    case kGgufUint32:
      return int64_t{load_gguf<uint32_t>(bytes, index)};
    case kGgufInt32:
      return int64_t{load_gguf<int32_t>(bytes, index)};
    case kGgufFloat32:
      return double{load_gguf<float>(bytes, index)};
    case kGgufUint64:
      return load_gguf<uint64_t>(bytes, index);
    case kGgufInt64:
      return load_gguf<int64_t>(bytes, index);
    default:
      return load_gguf<double>(bytes, index);
  }
}

}  // namespace fovea
