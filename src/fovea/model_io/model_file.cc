#include "fovea/model_io/model_file.h"

#include <filesystem>
#include <fstream>
#include <set>
#include <utility>

#include "fovea/base/checked_math.h"
#include "fovea/base/error.h"
#include "fovea/base/shown.h"
#include "fovea/model_io/quantized.h"
#include "fovea/model_io/tensor_names.h"

namespace fovea {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kFp8Tile = 128;  // FP8 weights have one scale per kFp8Tile x kFp8Tile of them
constexpr const char* kFp8ScaleSuffix = "_scale_inv";
constexpr const char* kRopeFactorsName = "rope_freqs.weight";

std::string_view as_text(const MappedFile& file) {
  return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
}

// Row of the file that holds row `row` of ours. Ours: all first members of a head's pairs, then all
// second ones. The file: pair after pair.
int64_t interleaved_row(int64_t row, int64_t head_dim) {
  const int64_t in_head = row % head_dim;
  const int64_t half = head_dim / 2;
  return row - in_head + 2 * (in_head % half) + in_head / half;
}

// Files of the family carry these, and nothing is lost without them.
bool may_be_ignored(std::string_view file_name) {
  return file_name == kRopeFactorsName || file_name.ends_with(".rotary_emb.inv_freq") ||
         file_name == "lm_head.weight" || file_name.ends_with(kFp8ScaleSuffix);
}

bool begins_as_gguf(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  char magic[4] = {};
  return file.read(magic, sizeof(magic)) && std::string_view(magic, sizeof(magic)) == "GGUF";
}

/// What belongs to one of a tensor's parts.
std::span<const std::byte> part_of(const FileTensor& tensor, const ExpectedTensor& expected) {
  const size_t size = tensor.bytes.size() / static_cast<size_t>(expected.num_parts);
  return tensor.bytes.subspan(static_cast<size_t>(expected.part) * size, size);
}

}  // namespace

ModelFile ModelFile::open(const std::string& path) {
  std::error_code ignored;
  const bool is_folder = fs::is_directory(path, ignored);
  if (!is_folder && (path.ends_with(".gguf") || begins_as_gguf(path))) {
    return from_gguf(Gguf::open(path));
  }
  if (!is_folder && !path.ends_with(".safetensors")) {
    if (!fs::exists(path, ignored)) fail(ErrorCode::kInvalidFile, "'{}' does not exist", path);
    fail(ErrorCode::kUnsupported,
         "'{}' is neither a GGUF file, nor a .safetensors file, nor a folder of a model", path);
  }
  const fs::path folder = is_folder ? fs::path(path) : fs::path(path).parent_path();
  const std::string config_path = (folder / "config.json").string();
  if (!fs::exists(config_path, ignored)) {
    fail(ErrorCode::kInvalidFile,
         "'{}' has no config.json {}; a GGUF file is given by its own name", path,
         is_folder ? "in it" : "beside it");
  }
  const MappedFile config_file(config_path);
  ModelConfig config = config_from_json(as_text(config_file), config_path);
  const std::string generation_path = (folder / "generation_config.json").string();
  if (fs::exists(generation_path, ignored)) {
    const MappedFile generation_file(generation_path);
    add_generation_config(as_text(generation_file), generation_path, config);
  }
  Safetensors weights = is_folder ? Safetensors::open_folder(path) : Safetensors::open_file(path);
  ModelFile model = from_safetensors(std::move(weights), std::move(config), path);
  model.folder_ = folder.empty() ? "." : folder.string();
  return model;
}

ModelFile ModelFile::from_gguf(Gguf gguf) {
  ModelFile model;
  model.name_ = gguf.name();
  if (gguf.find_int("split.count").value_or(1) > 1) {
    fail(ErrorCode::kUnsupported, "'{}' is one of {} parts of a model; join them first",
         gguf.name(), *gguf.find_int("split.count"));
  }
  model.config_ = config_from_gguf(gguf);
  model.gguf_ = std::move(gguf);
  if (const FileTensor* factors = model.gguf_->find_tensor(kRopeFactorsName)) {
    const int64_t half = model.config_.head_dim / 2;
    if (factors->type != WeightType::kF32 || factors->shape != std::vector<int64_t>{half}) {
      fail(ErrorCode::kInvalidFile, "'{}': tensor '{}' must be F32 [{}], is {} {}", model.name_,
           kRopeFactorsName, half, weight_type_name(factors->type), shape_text(factors->shape));
    }
    model.config_.rope_factors.resize(static_cast<size_t>(half));
    dequantize(factors->type, factors->bytes, model.config_.rope_factors);
    check_config(model.config_, model.name_);
  }
  model.bind_tensors();
  return model;
}

ModelFile ModelFile::from_safetensors(Safetensors weights, ModelConfig config, std::string name) {
  check_config(config, name);
  ModelFile model;
  model.name_ = std::move(name);
  model.config_ = std::move(config);
  model.safetensors_ = std::move(weights);
  model.bind_tensors();
  return model;
}

const FileTensor* ModelFile::find_file_tensor(std::string_view file_name) const {
  return gguf_ ? gguf_->find_tensor(file_name) : safetensors_->find_tensor(file_name);
}

void ModelFile::bind_tensors() {
  const FileFormat format = gguf_ ? FileFormat::kGguf : FileFormat::kSafetensors;
  for (ExpectedTensor& expected : expected_tensors(config_, format)) {
    const FileTensor* found = find_file_tensor(expected.file_name);
    std::vector<int64_t> shape = file_shape(expected);
    const bool is_mxfp4 = !expected.exponents_name.empty();
    if (found == nullptr) {
      fail(ErrorCode::kInvalidFile, "'{}': tensor '{}' of shape {} is missing", name_,
           expected.file_name, shape_text(shape));
    }
    if (found->shape != shape) {
      fail(ErrorCode::kInvalidFile, "'{}': tensor '{}' must have shape {}, has {}", name_,
           expected.file_name, shape_text(shape), shape_text(found->shape));
    }
    const bool is_vector = expected.shape.size() == 1;
    if (is_mxfp4 ? found->type != WeightType::kU8
                 : !can_dequantize(found->type) || (is_vector && pack_elements(found->type) != 1)) {
      fail(ErrorCode::kUnsupported, "'{}': tensor '{}' of type {} is not supported", name_,
           expected.file_name, weight_type_name(found->type));
    }
    ModelTensor tensor;
    tensor.name = expected.name;
    tensor.file_name = expected.file_name;
    tensor.type = found->type;
    tensor.shape = expected.shape;
    tensor.bytes = part_of(*found, expected);
    tensor.row_step = expected.row_step;
    tensor.first_row = expected.first_row;
    if (is_mxfp4) {
      shape.pop_back();
      const FileTensor* exponents = find_file_tensor(expected.exponents_name);
      if (exponents == nullptr || exponents->shape != shape || exponents->type != WeightType::kU8) {
        fail(ErrorCode::kInvalidFile, "'{}': MXFP4 tensor '{}' needs a '{}' of U8 {}, has {}",
             name_, expected.file_name, expected.exponents_name, shape_text(shape),
             exponents == nullptr ? "none" : shape_text(exponents->shape));
      }
      tensor.exponents = part_of(*exponents, expected);
      tensor.exponents_name = exponents->name;
    }
    if (gguf_ && config_.architecture == Architecture::kLlama) {
      tensor.interleaved_heads = expected.rope_heads;
    }
    tensor.add_one = !gguf_ && config_.architecture == Architecture::kGemma3 && expected.is_norm;
    if (found->type == WeightType::kF8E4M3 && !is_vector) {
      const std::string scale_name = expected.file_name + kFp8ScaleSuffix;
      const FileTensor* scale = find_file_tensor(scale_name);
      const std::vector<int64_t> scale_shape = {ceil_div(tensor.shape[0], kFp8Tile),
                                                ceil_div(tensor.shape[1], kFp8Tile)};
      if (scale == nullptr || scale->shape != scale_shape || pack_elements(scale->type) != 1 ||
          !can_dequantize(scale->type)) {
        fail(ErrorCode::kInvalidFile, "'{}': FP8 tensor '{}' needs a '{}' of shape {}, has {}",
             name_, expected.file_name, scale_name, shape_text(scale_shape),
             scale == nullptr ? "none" : shape_text(scale->shape));
      }
      tensor.tile_scale = scale;
    }
    tensors_.emplace(std::move(expected.name), std::move(tensor));
  }
  refuse_unknown_tensors();
}

// A bias or an expert that nobody multiplies would give wrong text without a word.
void ModelFile::refuse_unknown_tensors() const {
  std::set<std::string_view> known;
  for (const auto& [name, tensor] : tensors_) {
    known.insert(tensor.file_name);
    known.insert(tensor.exponents_name);
  }
  const auto check = [&](const FileTensor& tensor) {
    if (!known.contains(tensor.name) && !may_be_ignored(tensor.name)) {
      fail(ErrorCode::kUnsupported, "'{}': tensor '{}' has no place in a model of architecture {}",
           name_, shown(tensor.name), architecture_name(config_.architecture));
    }
  };
  if (gguf_) {
    for (const FileTensor& tensor : gguf_->tensors()) check(tensor);
  } else {
    for (const auto& [name, tensor] : safetensors_->tensors()) check(tensor);
  }
}

const ModelTensor* ModelFile::find_tensor(std::string_view name) const {
  const auto found = tensors_.find(name);
  return found == tensors_.end() ? nullptr : &found->second;
}

const ModelTensor& ModelFile::tensor(std::string_view name) const {
  const ModelTensor* found = find_tensor(name);
  check_argument(found != nullptr, "'{}' has no tensor '{}'", name_, name);
  return *found;
}

// Consecutive rows of the file, `columns` wide, without a permutation.
void ModelFile::read_stored_rows(const ModelTensor& tensor, int64_t columns, int64_t first_row,
                                 std::span<float> out) const {
  if (!tensor.exponents.empty()) {
    const auto begin = static_cast<size_t>(first_row * columns);
    dequantize_mxfp4(tensor.bytes.subspan(begin / 2, out.size() / 2),
                     tensor.exponents.subspan(begin / kMxFp4Group, out.size() / kMxFp4Group), out);
  } else {
    const int64_t begin = weight_bytes(tensor.type, first_row * columns);
    const int64_t size = weight_bytes(tensor.type, static_cast<int64_t>(out.size()));
    dequantize(tensor.type,
               tensor.bytes.subspan(static_cast<size_t>(begin), static_cast<size_t>(size)), out);
  }
  if (tensor.tile_scale != nullptr) {
    const int64_t tiles_per_row = ceil_div(columns, kFp8Tile);
    std::vector<float> scales(static_cast<size_t>(tiles_per_row));
    for (int64_t i = 0; i < static_cast<int64_t>(out.size()); ++i) {
      const int64_t row = first_row + i / columns;
      const int64_t column = i % columns;
      if (column == 0) {
        const int64_t row_bytes = weight_bytes(tensor.tile_scale->type, tiles_per_row);
        dequantize(tensor.tile_scale->type,
                   tensor.tile_scale->bytes.subspan(static_cast<size_t>(row / kFp8Tile * row_bytes),
                                                    static_cast<size_t>(row_bytes)),
                   scales);
      }
      out[static_cast<size_t>(i)] *= scales[static_cast<size_t>(column / kFp8Tile)];
    }
  }
  if (tensor.add_one) {
    for (float& value : out) value += 1.0f;
  }
  const int64_t bad = find_non_finite(out);
  if (bad >= 0) {
    fail(ErrorCode::kInvalidFile, "'{}': tensor '{}' holds a NaN or infinity at [{}, {}]", name_,
         tensor.file_name, first_row + bad / columns, bad % columns);
  }
}

void ModelFile::read_rows(const ModelTensor& tensor, int64_t first_row, int64_t num_rows,
                          std::span<float> out) const {
  const int64_t rows = tensor.shape[0];
  const int64_t columns = tensor.shape.size() == 2 ? tensor.shape[1] : 1;
  check_argument(first_row >= 0 && num_rows >= 0 && num_rows <= rows - first_row,
                 "rows [{}, {} + {}) are outside tensor '{}' of shape {}", first_row, first_row,
                 num_rows, tensor.name, shape_text(tensor.shape));
  check_argument(static_cast<int64_t>(out.size()) == num_rows * columns,
                 "{} rows of tensor '{}' take {} floats, got {}", num_rows, tensor.name,
                 num_rows * columns, out.size());
  if (tensor.interleaved_heads == 0 && tensor.row_step == 1) {
    return read_stored_rows(tensor, columns, first_row, out);
  }
  for (int64_t i = 0; i < num_rows; ++i) {
    int64_t row = first_row + i;
    if (tensor.interleaved_heads > 0) row = interleaved_row(row, rows / tensor.interleaved_heads);
    read_stored_rows(tensor, columns, row * tensor.row_step + tensor.first_row,
                     out.subspan(static_cast<size_t>(i * columns), static_cast<size_t>(columns)));
  }
}

void ModelFile::read_f32(const ModelTensor& tensor, std::span<float> out) const {
  read_rows(tensor, 0, tensor.shape[0], out);
}

std::vector<float> ModelFile::read_f32(std::string_view name) const {
  const ModelTensor& found = tensor(name);
  int64_t count = 1;
  for (const int64_t dim : found.shape) count *= dim;  // checked when the file was read
  std::vector<float> values(static_cast<size_t>(count));
  read_f32(found, values);
  return values;
}

}  // namespace fovea
