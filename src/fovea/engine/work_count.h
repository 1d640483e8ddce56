// What a step multiplies and reads, from its shapes alone.
#pragma once

#include <cstdint>

#include "fovea/engine/session.h"
#include "fovea/model_io/model_config.h"
#include "fovea/ops/matmul.h"
#include "fovea/selector/selection_buffer.h"

namespace fovea {

struct LayerWeights;  // engine/weights.h

/// Rows [position, position + num_rows) of a sequence, all in one step.
struct StepRows {
  int64_t position = 0;
  int64_t num_rows = 0;
};

void count_matmul(int64_t num_rows, const PackedWeights& weights, WorkDone* work);
/// Experts are counted as if no two rows went through the same one, until all are read.
void count_layer_matmuls(int64_t num_rows, const LayerWeights& weights, int64_t experts_per_token,
                         WorkDone* work);

/// One layer's attention; `window_left` as in AttentionParams.
void count_dense_attention(const ModelConfig& config, const StepRows& rows, int64_t window_left,
                           int64_t kv_element_bytes, WorkDone* work);
/// The same along lists, each of which holds its diagonal block.
void count_sparse_attention(const ModelConfig& config, const StepRows& rows, int64_t block_size,
                            const SelectionLengths& lengths, int64_t kv_element_bytes,
                            WorkDone* work);

}  // namespace fovea
