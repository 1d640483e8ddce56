// Which tensors a configuration asks for, and what each file format calls them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "fovea/model_io/model_config.h"

namespace fovea {

/// One tensor that a model must have.
struct ExpectedTensor {
  std::string name;       // ours
  std::string file_name;  // the format's
  std::vector<int64_t> shape;
  bool is_norm = false;
  int64_t rope_heads = 0;  // q and k: heads whose rows RoPE pairs up
  /// Where the file has several tensors of `shape` in one, along an axis before the others, which
  /// of them this is.
  int64_t part = 0, num_parts = 1;
  /// Row r of ours is row r * row_step + first_row of the file's, which has row_step times as many.
  int64_t row_step = 1, first_row = 0;
  /// MXFP4 in two tensors: `file_name` has the codes [out, in / 32, 16], this one an exponent for
  /// each 32 of them. Empty elsewhere.
  std::string exponents_name;
};

/// Shape that the file's tensor has, all parts and rows included.
std::vector<int64_t> file_shape(const ExpectedTensor& tensor);

enum class FileFormat { kGguf, kSafetensors };

/// All tensors of a model. Throws nothing but std::bad_alloc; `config` has passed check_config.
std::vector<ExpectedTensor> expected_tensors(const ModelConfig& config, FileFormat format);

}  // namespace fovea
