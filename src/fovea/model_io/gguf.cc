#include "fovea/model_io/gguf.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <utility>

#include "fovea/base/checked_math.h"
#include "fovea/base/error.h"
#include "fovea/base/shown.h"

static_assert(std::endian::native == std::endian::little, "GGUF numbers are read as they lie");

namespace fovea {
namespace {

constexpr int64_t kMaxMetadataEntries = 1 << 16;
constexpr int64_t kMaxTensors = 1 << 18;
constexpr uint32_t kMaxDims = 4;
constexpr int64_t kMaxNameBytes = 1 << 16;
constexpr int64_t kDefaultAlignment = 32;
constexpr int64_t kMaxAlignment = 1 << 20;

// Numbers of the format.
enum ValueType : uint32_t {
  kUint8,
  kInt8,
  kUint16,
  kInt16,
  kUint32,
  kInt32,
  kFloat32,
  kBool,
  kString,
  kArray,
  kUint64,
  kInt64,
  kFloat64,
  kNumValueTypes
};

constexpr std::string_view kValueTypeNames[kNumValueTypes] = {
    "uint8", "int8",   "uint16", "int16",  "uint32", "int32",  "float32",
    "bool",  "string", "array",  "uint64", "int64",  "float64"};
constexpr int64_t kValueTypeBytes[kNumValueTypes] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};

template <typename T>
T load(std::span<const std::byte> bytes, int64_t index) {
  T value;
  std::memcpy(&value, bytes.data() + static_cast<size_t>(index) * sizeof(T), sizeof(T));
  return value;
}

// A number of the file as the widest type of its kind.
GgufValue load_number(uint32_t type, std::span<const std::byte> bytes, int64_t index) {
  switch (type) {
    case kUint8:
      return int64_t{load<uint8_t>(bytes, index)};
    case kInt8:
      return int64_t{load<int8_t>(bytes, index)};
    case kUint16:
      return int64_t{load<uint16_t>(bytes, index)};
    case kInt16:
      return int64_t{load<int16_t>(bytes, index)};
    case kUint32:
      return int64_t{load<uint32_t>(bytes, index)};
    case kInt32:
      return int64_t{load<int32_t>(bytes, index)};
    case kFloat32:
      return double{load<float>(bytes, index)};
    case kUint64:
      return load<uint64_t>(bytes, index);
    case kInt64:
      return load<int64_t>(bytes, index);
    default:
      return load<double>(bytes, index);
  }
}

std::string_view kind_name(const GgufValue& value) {
  constexpr std::string_view kNames[] = {"integer", "integer", "float", "bool", "string", "array"};
  return kNames[value.index()];
}

}  // namespace

// Reads front to back; `position_` never passes the end of the file.
class GgufParser {
 public:
  GgufParser(std::span<const std::byte> bytes, Gguf& out) : bytes_(bytes), out_(out) {}

  void parse() {
    const int64_t num_tensors = parse_header();
    const int64_t alignment = find_alignment();
    parse_tensor_infos(num_tensors);
    place_tensors(alignment);
  }

 private:
  // Reads magic, version, counts and all metadata; returns the number of tensors.
  int64_t parse_header() {
    if (bytes_.size() < 4 || std::memcmp(bytes_.data(), "GGUF", 4) != 0) {
      fail(ErrorCode::kInvalidFile, "'{}' is not a GGUF file: it does not start with 'GGUF'",
           out_.name_);
    }
    position_ = 4;
    const auto version = read<uint32_t>("version");
    if (version != 2 && version != 3) {
      fail(ErrorCode::kUnsupported, "'{}': GGUF version {} is not supported (2 and 3 are)",
           out_.name_, version);
    }
    out_.version_ = version;
    // The smallest tensor info and metadata entry bound the counts before anything is reserved.
    const int64_t num_tensors = read_count("tensor count", 8 + 4 + 4 + 8, kMaxTensors);
    const int64_t num_entries = read_count("metadata count", 8 + 4 + 1, kMaxMetadataEntries);
    for (int64_t i = 0; i < num_entries; ++i) parse_entry();
    return num_tensors;
  }

  void parse_entry() {
    const std::string_view key = read_string("metadata key", kMaxNameBytes);
    const auto type = read<uint32_t>("metadata type");
    GgufValue value = read_value(key, type);
    if (!out_.metadata_.emplace(key, std::move(value)).second) {
      fail(ErrorCode::kInvalidFile, "'{}': duplicate metadata key '{}'", out_.name_, shown(key));
    }
  }

  GgufValue read_value(std::string_view key, uint32_t type) {
    check_value_type(key, type);
    if (type == kString) return read_string(key, remaining());
    if (type == kArray) return read_array(key);
    const auto bytes = take(kValueTypeBytes[type], key);
    if (type != kBool) return load_number(type, bytes, 0);
    check_bools(key, bytes);
    return bytes[0] != std::byte{0};
  }

  GgufArray read_array(std::string_view key) {
    GgufArray array;
    array.element_type = read<uint32_t>("array element type");
    check_value_type(key, array.element_type);
    if (array.element_type == kArray) {
      fail(ErrorCode::kInvalidFile, "'{}': metadata '{}' is an array of arrays, which no key has",
           out_.name_, shown(key));
    }
    const bool strings = array.element_type == kString;
    const int64_t element_bytes = strings ? 8 : kValueTypeBytes[array.element_type];
    array.count = read_count(key, element_bytes, std::numeric_limits<int64_t>::max());
    if (!strings) {
      array.bytes = take(array.count * element_bytes, key);
      if (array.element_type == kBool) check_bools(key, array.bytes);
      return array;
    }
    // The file bounds the count, but a sparse file of terabytes would bound it by too much.
    constexpr int64_t kMostReserved = 1 << 20;
    array.strings.reserve(static_cast<size_t>(std::min(array.count, kMostReserved)));
    for (int64_t i = 0; i < array.count; ++i) {
      array.strings.push_back(read_string(key, remaining()));
    }
    return array;
  }

  void check_value_type(std::string_view key, uint32_t type) {
    if (type < kNumValueTypes) return;
    fail(ErrorCode::kInvalidFile, "'{}': metadata '{}' has unknown type {}", out_.name_, shown(key),
         type);
  }

  void check_bools(std::string_view key, std::span<const std::byte> bytes) {
    for (const std::byte byte : bytes) {
      if (byte > std::byte{1}) {
        fail(ErrorCode::kInvalidFile, "'{}': metadata '{}' holds a bool of value {}", out_.name_,
             shown(key), static_cast<int>(byte));
      }
    }
  }

  int64_t find_alignment() {
    const int64_t alignment = out_.find_int("general.alignment").value_or(kDefaultAlignment);
    if (alignment < 1 || alignment > kMaxAlignment || (alignment & (alignment - 1)) != 0) {
      fail(ErrorCode::kInvalidFile,
           "'{}': general.alignment must be a power of two from 1 to {}, is {}", out_.name_,
           kMaxAlignment, alignment);
    }
    return alignment;
  }

  // Leaves each tensor's bytes unset; offsets_ holds where they begin in the data section.
  void parse_tensor_infos(int64_t num_tensors) {
    out_.tensors_.reserve(static_cast<size_t>(num_tensors));
    for (int64_t i = 0; i < num_tensors; ++i) {
      FileTensor tensor;
      tensor.name = read_string("tensor name", kMaxNameBytes);
      if (!out_.tensor_index_.emplace(tensor.name, out_.tensors_.size()).second) {
        fail(ErrorCode::kInvalidFile, "'{}': duplicate tensor name '{}'", out_.name_,
             shown(tensor.name));
      }
      read_shape(tensor);
      const auto type_number = read<uint32_t>("tensor type");
      const auto type = weight_type_from_gguf(type_number);
      if (!type) {
        fail(ErrorCode::kUnsupported,
             "'{}': tensor '{}' has type number {}, which is not supported", out_.name_,
             shown(tensor.name), type_number);
      }
      tensor.type = *type;
      offsets_.push_back(read<uint64_t>("tensor offset"));
      out_.tensors_.push_back(std::move(tensor));
    }
  }

  void read_shape(FileTensor& tensor) {
    const auto num_dims = read<uint32_t>("tensor rank");
    if (num_dims > kMaxDims) {
      fail(ErrorCode::kInvalidFile, "'{}': tensor '{}' has {} dimensions, the format allows {}",
           out_.name_, shown(tensor.name), num_dims, kMaxDims);
    }
    tensor.shape.resize(num_dims);
    for (uint32_t i = 0; i < num_dims; ++i) {
      const auto dim = read<uint64_t>("tensor dimension");
      if (dim < 1 || dim > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
        fail(ErrorCode::kInvalidFile, "'{}': tensor '{}' has a dimension of {}", out_.name_,
             shown(tensor.name), dim);
      }
      tensor.shape[num_dims - 1 - i] = static_cast<int64_t>(dim);  // the file has the fastest first
    }
  }

  // Tensors lie in order, without overlap, inside the file. Gaps, unaligned offsets and a last
  // tensor without padding are odd, but harm nothing: weights are read bytewise.
  void place_tensors(int64_t alignment) {
    const auto file_size = static_cast<int64_t>(bytes_.size());
    const int64_t data_begin = ceil_div(position_, alignment) * alignment;
    int64_t previous_end = 0;
    for (size_t i = 0; i < out_.tensors_.size(); ++i) {
      FileTensor& tensor = out_.tensors_[i];
      const int64_t size = tensor_bytes(tensor);
      const uint64_t offset = offsets_[i];
      const int64_t data_size = data_begin < file_size ? file_size - data_begin : 0;
      if (size > data_size || offset > static_cast<uint64_t>(data_size - size)) {
        fail(ErrorCode::kInvalidFile,
             "'{}': tensor '{}' ends past the file: offset {}, {} bytes, data section of {} bytes",
             out_.name_, shown(tensor.name), offset, size, data_size);
      }
      const auto begin = static_cast<int64_t>(offset);
      if (begin < previous_end) {
        fail(ErrorCode::kInvalidFile,
             "'{}': tensor '{}' begins at offset {}, inside or before the previous one, which ends "
             "at {}",
             out_.name_, shown(tensor.name), begin, previous_end);
      }
      tensor.bytes =
          bytes_.subspan(static_cast<size_t>(data_begin + begin), static_cast<size_t>(size));
      previous_end = begin + size;
    }
  }

  int64_t tensor_bytes(const FileTensor& tensor) {
    int64_t elements = 1;
    for (const int64_t dim : tensor.shape) {
      if (__builtin_mul_overflow(elements, dim, &elements)) {
        fail(ErrorCode::kInvalidFile, "'{}': tensor '{}' of shape {} has more than 2^63 elements",
             out_.name_, shown(tensor.name), shape_text(tensor.shape));
      }
    }
    const int64_t row = tensor.shape.empty() ? 1 : tensor.shape.back();
    if (row % pack_elements(tensor.type) != 0) {
      fail(ErrorCode::kInvalidFile, "'{}': tensor '{}' has rows of {}, {} needs a multiple of {}",
           out_.name_, shown(tensor.name), row, weight_type_name(tensor.type),
           pack_elements(tensor.type));
    }
    int64_t bytes = 0;
    if (__builtin_mul_overflow(elements / pack_elements(tensor.type), pack_bytes(tensor.type),
                               &bytes)) {
      fail(ErrorCode::kInvalidFile, "'{}': tensor '{}' of shape {} has more than 2^63 bytes",
           out_.name_, shown(tensor.name), shape_text(tensor.shape));
    }
    return bytes;
  }

  int64_t remaining() const { return static_cast<int64_t>(bytes_.size()) - position_; }

  std::span<const std::byte> take(int64_t size, std::string_view what) {
    if (size > remaining()) {
      fail(ErrorCode::kInvalidFile, "'{}' is cut short: {} at byte {} needs {} bytes, {} are left",
           out_.name_, shown(what), position_, size, remaining());
    }
    const auto result = bytes_.subspan(static_cast<size_t>(position_), static_cast<size_t>(size));
    position_ += size;
    return result;
  }

  template <typename T>
  T read(std::string_view what) {
    return load<T>(take(sizeof(T), what), 0);
  }

  // A number of items that take at least `item_bytes` each, so that the file bounds it.
  int64_t read_count(std::string_view what, int64_t item_bytes, int64_t limit) {
    const auto count = read<uint64_t>(what);
    const int64_t most = std::min(limit, remaining() / item_bytes);
    if (count > static_cast<uint64_t>(most)) {
      fail(ErrorCode::kInvalidFile, "'{}': {} counts {} items, at most {} are possible", out_.name_,
           shown(what), count, most);
    }
    return static_cast<int64_t>(count);
  }

  std::string_view read_string(std::string_view what, int64_t limit) {
    const int64_t size = read_count(what, 1, limit);
    const auto bytes = take(size, what);
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }

  std::span<const std::byte> bytes_;
  Gguf& out_;
  int64_t position_ = 0;
  std::vector<uint64_t> offsets_;
};

Gguf Gguf::open(const std::string& path) {
  MappedFile file(path);
  Gguf gguf = parse(file.bytes(), path);
  gguf.file_ = std::move(file);  // the mapping does not move with its owner: views stay valid
  return gguf;
}

Gguf Gguf::parse(std::span<const std::byte> bytes, const std::string& name) {
  Gguf gguf;
  gguf.name_ = name;
  GgufParser(bytes, gguf).parse();
  return gguf;
}

const GgufValue* Gguf::find(std::string_view key) const {
  const auto found = metadata_.find(key);
  return found == metadata_.end() ? nullptr : &found->second;
}

namespace {

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
  fail_type(gguf, key, expected,
            fmt::format("an array of {}", kValueTypeNames[array.element_type]));
}

}  // namespace

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
  if (array.element_type != kString) fail_element_type(*this, key, "an array of strings", array);
  return array.strings;
}

std::optional<std::vector<float>> Gguf::find_floats(std::string_view key) const {
  const GgufValue* value = find(key);
  if (value == nullptr) return std::nullopt;
  const GgufArray& array = as_array(*this, key, *value, "an array of float32");
  if (array.element_type != kFloat32) fail_element_type(*this, key, "an array of float32", array);
  std::vector<float> result(static_cast<size_t>(array.count));
  if (!result.empty()) std::memcpy(result.data(), array.bytes.data(), array.bytes.size());
  return result;
}

std::optional<std::vector<int32_t>> Gguf::find_ints(std::string_view key) const {
  const GgufValue* value = find(key);
  if (value == nullptr) return std::nullopt;
  constexpr std::string_view kExpected = "an array of integers of at most 32 bits";
  const GgufArray& array = as_array(*this, key, *value, kExpected);
  if (array.element_type > kInt32) fail_element_type(*this, key, kExpected, array);
  std::vector<int32_t> result(static_cast<size_t>(array.count));
  for (int64_t i = 0; i < array.count; ++i) {
    const auto number = std::get<int64_t>(load_number(array.element_type, array.bytes, i));
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
  if (array.element_type != kBool) fail_element_type(*this, key, "an array of bools", array);
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
