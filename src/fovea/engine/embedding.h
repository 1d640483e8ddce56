// Where rows of the token embedding come from.
#pragma once

#include <cstdint>

#include "fovea/model_io/model_file.h"
#include "fovea/ops/row_ops.h"
#include "fovea/tensor/tensor.h"

namespace fovea {

class Embedding {
 public:
  virtual ~Embedding() = default;
  /// Writes the rows of `tokens` (memory of the device) into `out`, f32 [rows, model_dim].
  virtual void read(const int32_t* tokens, const TensorView& out, RowOps& ops) const = 0;
};

/// Reads rows from an open file as they are asked for: few of a large table's are. CPU only.
class FileEmbedding final : public Embedding {
 public:
  explicit FileEmbedding(const ModelFile& file);
  void read(const int32_t* tokens, const TensorView& out, RowOps& ops) const override;

 private:
  const ModelFile& file_;
  const ModelTensor& table_;
  float scale_;
};

/// Reads rows of a table in the device's memory, which must outlive it.
class TableEmbedding final : public Embedding {
 public:
  TableEmbedding(const TensorView& table, float scale) : table_(table), scale_(scale) {}
  void read(const int32_t* tokens, const TensorView& out, RowOps& ops) const override {
    ops.embed(tokens, table_, scale_, out);
  }

 private:
  TensorView table_;
  float scale_;
};

}  // namespace fovea
