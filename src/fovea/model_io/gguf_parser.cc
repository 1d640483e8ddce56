// Reading a GGUF file from front to back; lookups are in gguf.cc.
#include <algorithm>
#include <limits>
#include <utility>

#include "fovea/base/checked_math.h"
#include "fovea/base/error.h"
#include "fovea/base/shown.h"
#include "fovea/model_io/gguf.h"
#include "fovea/model_io/gguf_format.h"

namespace fovea {

namespace {

constexpr int64_t kMaxMetadataEntries = 1 << 16;
constexpr int64_t kMaxTensors = 1 << 18;
constexpr uint32_t kMaxDims = 4;
constexpr int64_t kMaxNameBytes = 1 << 16;
constexpr int64_t kDefaultAlignment = 32;
constexpr int64_t kMaxAlignment = 1 << 20;

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
    if (type == kGgufString) return read_string(key, remaining());
    if (type == kGgufArray) return read_array(key);
    const auto bytes = take(kGgufTypeBytes[type], key);
    if (type != kGgufBool) return load_gguf_number(type, bytes, 0);
    check_bools(key, bytes);
    return bytes[0] != std::byte{0};
  }

  GgufArray read_array(std::string_view key) {
    GgufArray array;
    array.element_type = read<uint32_t>("array element type");
    check_value_type(key, array.element_type);
    if (array.element_type == kGgufArray) {
      fail(ErrorCode::kInvalidFile, "'{}': metadata '{}' is an array of arrays, which no key has",
           out_.name_, shown(key));
    }
    const bool strings = array.element_type == kGgufString;
    const int64_t element_bytes = strings ? 8 : kGgufTypeBytes[array.element_type];
    array.count = read_count(key, element_bytes, std::numeric_limits<int64_t>::max());
    if (!strings) {
      array.bytes = take(array.count * element_bytes, key);
      if (array.element_type == kGgufBool) check_bools(key, array.bytes);
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
    if (type < kNumGgufTypes) return;
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
    return load_gguf<T>(take(sizeof(T), what), 0);
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

}  // namespace fovea
