#include "fovea/engine/embedding.h"

#include <span>

namespace fovea {

FileEmbedding::FileEmbedding(const ModelFile& file)
    : file_(file),
      table_(file.tensor("token_embedding")),
      scale_(static_cast<float>(file.config().embedding_scale)) {}

void FileEmbedding::read(const int32_t* tokens, const TensorView& out, RowOps&) const {
  const int64_t dim = out.shape[1];
  for (int64_t row = 0; row < out.shape[0]; ++row) {
    const std::span<float> values(out.as<float>() + row * out.stride[0], static_cast<size_t>(dim));
    file_.read_rows(table_, tokens[row], 1, values);
    if (scale_ == 1.0f) continue;
    for (float& value : values) value *= scale_;
  }
}

}  // namespace fovea
