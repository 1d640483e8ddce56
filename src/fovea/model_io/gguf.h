// Reader of GGUF files (versions 2 and 3). The file is not trusted: every count, length and offset
// is checked against the file before it is used, and views point into the mapping. Format:
// https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "fovea/base/mapped_file.h"
#include "fovea/model_io/weight_type.h"

namespace fovea {

/// An array of the metadata. Numbers stay packed in the file (`bytes`, no alignment); strings are
/// views.
struct GgufArray {
  uint32_t element_type = 0;
  int64_t count = 0;
  std::span<const std::byte> bytes;
  std::vector<std::string_view> strings;
};

/// A metadata value: integers widen to 64 bits, floats to double.
using GgufValue = std::variant<int64_t, uint64_t, double, bool, std::string_view, GgufArray>;

/// A parsed file. Moves, does not copy; views stay valid as long as it (and `bytes` of parse)
/// lives.
class Gguf {
 public:
  /// Maps and parses a file.
  /// Throws kInvalidFile when the file cannot be read or breaks the format, kUnsupported for a
  /// version or a tensor type we do not read; the message names file, key or tensor, and value.
  static Gguf open(const std::string& path);
  /// The same from memory that the caller keeps; `name` stands for the path in messages.
  static Gguf parse(std::span<const std::byte> bytes, const std::string& name);

  const std::string& name() const { return name_; }
  int64_t version() const { return version_; }

  const std::map<std::string_view, GgufValue>& metadata() const { return metadata_; }
  /// Lookups: nothing when the key is absent, kInvalidFile when it has another type.
  std::optional<int64_t> find_int(std::string_view key) const;
  /// A float, or an integer.
  std::optional<double> find_float(std::string_view key) const;
  std::optional<bool> find_bool(std::string_view key) const;
  std::optional<std::string_view> find_string(std::string_view key) const;
  std::optional<std::span<const std::string_view>> find_strings(std::string_view key) const;
  std::optional<std::vector<float>> find_floats(std::string_view key) const;
  std::optional<std::vector<int32_t>> find_ints(std::string_view key) const;
  std::optional<std::vector<bool>> find_bools(std::string_view key) const;
  /// As above; an absent key is kInvalidFile too.
  int64_t get_int(std::string_view key) const;
  double get_float(std::string_view key) const;
  std::string_view get_string(std::string_view key) const;

  /// In file order.
  const std::vector<FileTensor>& tensors() const { return tensors_; }
  /// Null when absent.
  const FileTensor* find_tensor(std::string_view name) const;

 private:
  friend class GgufParser;
  Gguf() = default;
  const GgufValue* find(std::string_view key) const;

  std::string name_;
  std::optional<MappedFile> file_;
  int64_t version_ = 0;
  std::map<std::string_view, GgufValue> metadata_;
  std::vector<FileTensor> tensors_;
  std::map<std::string, size_t, std::less<>> tensor_index_;
};

}  // namespace fovea
