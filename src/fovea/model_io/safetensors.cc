#include "fovea/model_io/safetensors.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <filesystem>
#include <set>
#include <utility>

#include "fovea/base/error.h"
#include "fovea/base/json_file.h"
#include "fovea/base/shown.h"

static_assert(std::endian::native == std::endian::little, "header sizes are read as they lie");

namespace fovea {
namespace {

using nlohmann::json;

constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // the limit of the reference implementation
constexpr size_t kMaxRank = 8;
constexpr size_t kMaxShards = 4096;
constexpr int kHeaderDepth = 3;  // header, tensor, shape
constexpr int kIndexDepth = 3;

std::string_view as_text(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// Where a tensor's bytes lie in the data section.
struct Placed {
  FileTensor tensor;
  int64_t begin = 0;
  int64_t end = 0;
};

// A non-negative integer of an array of the header.
int64_t element(const json& value, const char* what, const std::string& tensor,
                const std::string& file) {
  if (!value.is_number_unsigned() || value.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX)) {
    fail(ErrorCode::kInvalidFile, "'{}': tensor '{}' has a {} that is no integer in [0, 2^63)",
         file, shown(tensor), what);
  }
  return value.get<int64_t>();
}

const json& array_of(const JsonObject& entry, const char* key, const std::string& tensor) {
  const json* value = entry.find(key);
  if (value == nullptr || !value->is_array()) {
    fail(ErrorCode::kInvalidFile, "'{}': tensor '{}' needs an array '{}'", entry.name(),
         shown(tensor), key);
  }
  return *value;
}

Placed parse_tensor(const std::string& tensor_name, const json& value, const std::string& file) {
  const JsonObject entry(value, file);
  Placed placed;
  placed.tensor.name = tensor_name;
  const std::string dtype = entry.find_string("dtype").value_or("");
  const auto type = weight_type_from_safetensors(dtype);
  if (!type) {
    fail(ErrorCode::kUnsupported, "'{}': tensor '{}' has dtype '{}', which is not supported", file,
         shown(tensor_name), shown(dtype));
  }
  placed.tensor.type = *type;
  const json& shape = array_of(entry, "shape", tensor_name);
  if (shape.size() > kMaxRank) {
    fail(ErrorCode::kInvalidFile, "'{}': tensor '{}' has {} dimensions, at most {} are read", file,
         shown(tensor_name), shape.size(), kMaxRank);
  }
  int64_t size = pack_bytes(*type);
  for (const json& dim : shape) {
    placed.tensor.shape.push_back(element(dim, "dimension", tensor_name, file));
    if (__builtin_mul_overflow(size, placed.tensor.shape.back(), &size)) {
      fail(ErrorCode::kInvalidFile, "'{}': tensor '{}' has more than 2^63 bytes", file,
           shown(tensor_name));
    }
  }
  const json& offsets = array_of(entry, "data_offsets", tensor_name);
  if (offsets.size() != 2) {
    fail(ErrorCode::kInvalidFile, "'{}': tensor '{}' has {} data_offsets, must be 2", file,
         shown(tensor_name), offsets.size());
  }
  placed.begin = element(offsets[0], "data offset", tensor_name, file);
  placed.end = element(offsets[1], "data offset", tensor_name, file);
  if (placed.end < placed.begin || placed.end - placed.begin != size) {
    fail(ErrorCode::kInvalidFile,
         "'{}': tensor '{}' of type {} and shape {} takes {} bytes, its offsets are [{}, {}]", file,
         shown(tensor_name), dtype, shape_text(placed.tensor.shape), size, placed.begin,
         placed.end);
  }
  return placed;
}

// Throws unless `name` is a plain file name, so that the index cannot lead out of its folder.
void check_shard_name(const std::string& shard, const std::string& index) {
  const bool plain = !shard.empty() && shard[0] != '.' && shard.size() < 256 &&
                     shard.find_first_of(std::string_view("/\\\0", 3)) == std::string::npos;
  if (!plain || !shard.ends_with(".safetensors")) {
    fail(ErrorCode::kInvalidFile,
         "'{}': shard '{}' must be the name of a .safetensors file in the same folder", index,
         shown(shard));
  }
}

}  // namespace

Safetensors Safetensors::open_file(const std::string& path) {
  Safetensors result;
  result.add_file(path);
  return result;
}

Safetensors Safetensors::open_folder(const std::string& folder) {
  const std::filesystem::path base(folder);
  const std::string index_path = (base / "model.safetensors.index.json").string();
  std::error_code ignored;
  if (!std::filesystem::exists(index_path, ignored)) {
    return open_file((base / "model.safetensors").string());
  }
  const MappedFile index_file(index_path);
  const auto index = parse_shard_index(as_text(index_file.bytes()), index_path);
  std::set<std::string> shards;
  for (const auto& [tensor, shard] : index) shards.insert(shard);
  Safetensors result;
  for (const std::string& shard : shards) result.add_file((base / shard).string());
  for (const auto& [tensor, shard] : index) {
    if (!result.tensors_.contains(tensor)) {
      fail(ErrorCode::kInvalidFile, "'{}': tensor '{}' is in none of the shards", index_path,
           shown(tensor));
    }
  }
  return result;
}

Safetensors Safetensors::parse(std::span<const std::byte> bytes, const std::string& name) {
  Safetensors result;
  result.add_tensors(bytes, name);
  return result;
}

const FileTensor* Safetensors::find_tensor(std::string_view name) const {
  const auto found = tensors_.find(name);
  return found == tensors_.end() ? nullptr : &found->second;
}

void Safetensors::add_file(const std::string& path) {
  files_.emplace_back(path);
  add_tensors(files_.back().bytes(), path);
}

void Safetensors::add_tensors(std::span<const std::byte> bytes, const std::string& name) {
  uint64_t header_size = 0;
  if (bytes.size() < sizeof(header_size)) {
    fail(ErrorCode::kInvalidFile, "'{}' is no safetensors file: {} bytes", name, bytes.size());
  }
  std::memcpy(&header_size, bytes.data(), sizeof(header_size));
  const auto rest = bytes.subspan(sizeof(header_size));
  if (header_size > std::min<uint64_t>(kMaxHeaderBytes, rest.size())) {
    fail(ErrorCode::kInvalidFile, "'{}': header of {} bytes, at most {} are possible", name,
         header_size, std::min<uint64_t>(kMaxHeaderBytes, rest.size()));
  }
  const auto data = rest.subspan(header_size);
  const json header = parse_json_object(as_text(rest.first(header_size)), name, kHeaderDepth);
  std::vector<Placed> placed;
  for (const auto& [tensor_name, value] : header.items()) {
    if (tensor_name == "__metadata__") continue;
    placed.push_back(parse_tensor(tensor_name, value, name));
  }
  // The format wants the data section covered without holes and without overlap.
  std::sort(placed.begin(), placed.end(), [](const Placed& a, const Placed& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  int64_t previous_end = 0;
  for (Placed& p : placed) {
    if (p.end > static_cast<int64_t>(data.size())) {
      fail(ErrorCode::kInvalidFile,
           "'{}': tensor '{}' ends at {}, past the data section of {} bytes", name,
           shown(p.tensor.name), p.end, data.size());
    }
    if (p.begin != previous_end) {
      fail(ErrorCode::kInvalidFile, "'{}': tensor '{}' begins at {}, the one before it ends at {}",
           name, shown(p.tensor.name), p.begin, previous_end);
    }
    previous_end = p.end;
    p.tensor.bytes =
        data.subspan(static_cast<size_t>(p.begin), static_cast<size_t>(p.end - p.begin));
    const std::string tensor_name = p.tensor.name;
    if (!tensors_.emplace(tensor_name, std::move(p.tensor)).second) {
      fail(ErrorCode::kInvalidFile, "'{}': tensor '{}' is in another shard too", name,
           shown(tensor_name));
    }
  }
  if (previous_end != static_cast<int64_t>(data.size())) {
    fail(ErrorCode::kInvalidFile, "'{}': data section of {} bytes, tensors cover {}", name,
         data.size(), previous_end);
  }
}

std::map<std::string, std::string> parse_shard_index(std::string_view text,
                                                     const std::string& name) {
  const json index = parse_json_object(text, name, kIndexDepth);
  const json* weight_map = JsonObject(index, name).find("weight_map");
  if (weight_map == nullptr || !weight_map->is_object()) {
    fail(ErrorCode::kInvalidFile, "'{}': 'weight_map' is missing", name);
  }
  std::map<std::string, std::string> result;
  std::set<std::string> shards;
  for (const auto& [tensor, shard] : weight_map->items()) {
    if (!shard.is_string()) {
      fail(ErrorCode::kInvalidFile, "'{}': the shard of '{}' must be a string", name,
           shown(tensor));
    }
    const auto& shard_name = shard.get_ref<const std::string&>();
    check_shard_name(shard_name, name);
    shards.insert(shard_name);
    result.emplace(tensor, shard_name);
  }
  if (shards.size() > kMaxShards) {
    fail(ErrorCode::kInvalidFile, "'{}': {} shards, at most {} are opened", name, shards.size(),
         kMaxShards);
  }
  return result;
}

}  // namespace fovea
