// Reader of safetensors: one file, or a folder of shards with an index. The files are not trusted.
// Format: https://github.com/huggingface/safetensors (README, "Format")
#pragma once

#include <cstddef>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "fovea/base/mapped_file.h"
#include "fovea/model_io/weight_type.h"

namespace fovea {

/// Tensors of one model by name. Moves, does not copy; views live as long as it does.
class Safetensors {
 public:
  /// Maps and parses one file.
  /// Throws kInvalidFile when it cannot be read or breaks the format, kUnsupported for a dtype we
  /// do not know; the message names file, tensor and value.
  static Safetensors open_file(const std::string& path);
  /// model.safetensors of `folder`, or the shards that model.safetensors.index.json names.
  /// Shard names with a folder in them are refused: an index must not reach outside its folder.
  static Safetensors open_folder(const std::string& folder);
  /// One file from memory that the caller keeps; `name` stands for the path in messages.
  static Safetensors parse(std::span<const std::byte> bytes, const std::string& name);

  const std::map<std::string, FileTensor, std::less<>>& tensors() const { return tensors_; }
  /// Null when absent.
  const FileTensor* find_tensor(std::string_view name) const;

 private:
  Safetensors() = default;
  void add_file(const std::string& path);
  void add_tensors(std::span<const std::byte> bytes, const std::string& name);

  std::vector<MappedFile> files_;
  std::map<std::string, FileTensor, std::less<>> tensors_;
};

/// Checks the text of model.safetensors.index.json and returns tensor name -> shard file name.
std::map<std::string, std::string> parse_shard_index(std::string_view text,
                                                     const std::string& name);

}  // namespace fovea
