#include "fovea/model_io/gguf.h"

#include <cstring>
#include <limits>

#include "fovea/base/error.h"
#include "fovea/base/shown.h"
#include "fovea/model_io/gguf_format.h"

namespace fovea {
namespace {

std::string_view kind_name(const GgufValue& value) {
  constexpr std::string_view kNames[] = {"integer", "integer", "float", "bool", "string", "array"};
  return kNames[value.index()];
}

[[noreturn]] void fail_type(const Gguf& gguf, std::string_view key, std::string_view expected,
                            std::string_view found) {
  fail(ErrorCode::kInvalidFile, "'{}': metadata '{}' must be {}, is {}", gguf.name(), shown(key),
       expected, found);
}

[[noreturn]] void fail_missing(const Gguf& gguf, std::string_view key) {
  fail(ErrorCode::kInvalidFile, "'{}': metadata '{}' is missing", gguf.name(), shown(key));
}

const GgufArray& as_array(const Gguf& gguf, std::string_view key, const GgufValue& value,
                          std::string_view expected) {
  const auto* array = std::get_if<GgufArray>(&value);
  if (array == nullptr) fail_type(gguf, key, expected, kind_name(value));
  return *array;
}

[[noreturn]] void fail_element_type(const Gguf& gguf, std::string_view key,
                                    std::string_view expected, const GgufArray& array) {
  fail_type(gguf, key, expected, fmt::format("an array of {}", kGgufTypeNames[array.element_type]));
}

}  // namespace

const GgufValue* Gguf::find(std::string_view key) const {
  const auto found = metadata_.find(key);
  return found == metadata_.end() ? nullptr : &found->second;
}

std::optional<int64_t> Gguf::find_int(std::string_view key) const {
  const GgufValue* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (const auto* integer = std::get_if<int64_t>(value)) return *integer;
  const auto* large = std::get_if<uint64_t>(value);
  if (large == nullptr) fail_type(*this, key, "an integer", kind_name(*value));
  if (*large > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
    fail_type(*this, key, "below 2^63", fmt::format("{}", *large));
  }
  return static_cast<int64_t>(*large);
}

std::optional<double> Gguf::find_float(std::string_view key) const {
  const GgufValue* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (const auto* number = std::get_if<double>(value)) return *number;
  return static_cast<double>(*find_int(key));
}

std::optional<bool> Gguf::find_bool(std::string_view key) const {
  const GgufValue* value = find(key);
  if (value == nullptr) return std::nullopt;
  const auto* flag = std::get_if<bool>(value);
  if (flag == nullptr) fail_type(*this, key, "a bool", kind_name(*value));
  return *flag;
}

std::optional<std::string_view> Gguf::find_string(std::string_view key) const {
  const GgufValue* value = find(key);
  if (value == nullptr) return std::nullopt;
  const auto* text = std::get_if<std::string_view>(value);
  if (text == nullptr) fail_type(*this, key, "a string", kind_name(*value));
  return *text;
}

std::optional<std::span<const std::string_view>> Gguf::find_strings(std::string_view key) const {
  const GgufValue* value = find(key);
  if (value == nullptr) return std::nullopt;
  const GgufArray& array = as_array(*this, key, *value, "an array of strings");
  if (array.element_type != kGgufString)
    fail_element_type(*this, key, "an array of strings", array);
  return array.strings;
}

std::optional<std::vector<float>> Gguf::find_floats(std::string_view key) const {
  const GgufValue* value = find(key);
  if (value == nullptr) return std::nullopt;
  const GgufArray& array = as_array(*this, key, *value, "an array of float32");
  if (array.element_type != kGgufFloat32)
    fail_element_type(*this, key, "an array of float32", array);
  std::vector<float> result(static_cast<size_t>(array.count));
  if (!result.empty()) std::memcpy(result.data(), array.bytes.data(), array.bytes.size());
  return result;
}

std::optional<std::vector<int32_t>> Gguf::find_ints(std::string_view key) const {
  const GgufValue* value = find(key);
  if (value == nullptr) return std::nullopt;
  constexpr std::string_view kExpected = "an array of integers of at most 32 bits";
  const GgufArray& array = as_array(*this, key, *value, kExpected);
  if (array.element_type > kGgufInt32) fail_element_type(*this, key, kExpected, array);
  std::vector<int32_t> result(static_cast<size_t>(array.count));
  for (int64_t i = 0; i < array.count; ++i) {
    const auto number = std::get<int64_t>(load_gguf_number(array.element_type, array.bytes, i));
    if (number > std::numeric_limits<int32_t>::max()) {
      fail_type(*this, key, "below 2^31", fmt::format("{}", number));
    }
    result[static_cast<size_t>(i)] = static_cast<int32_t>(number);
  }
  return result;
}

std::optional<std::vector<bool>> Gguf::find_bools(std::string_view key) const {
  const GgufValue* value = find(key);
  if (value == nullptr) return std::nullopt;
  const GgufArray& array = as_array(*this, key, *value, "an array of bools");
  if (array.element_type != kGgufBool) fail_element_type(*this, key, "an array of bools", array);
  std::vector<bool> result;
  for (const std::byte byte : array.bytes) result.push_back(byte != std::byte{0});
  return result;
}

int64_t Gguf::get_int(std::string_view key) const {
  const auto value = find_int(key);
  if (!value) fail_missing(*this, key);
  return *value;
}

double Gguf::get_float(std::string_view key) const {
  const auto value = find_float(key);
  if (!value) fail_missing(*this, key);
  return *value;
}

std::string_view Gguf::get_string(std::string_view key) const {
  const auto value = find_string(key);
  if (!value) fail_missing(*this, key);
  return *value;
}

const FileTensor* Gguf::find_tensor(std::string_view name) const {
  const auto found = tensor_index_.find(name);
  return found == tensor_index_.end() ? nullptr : &tensors_[found->second];
}

}  // namespace fovea
