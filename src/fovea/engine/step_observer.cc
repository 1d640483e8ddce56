#include "fovea/engine/step_observer.h"

#include <array>

namespace fovea {

std::string_view step_op_name(StepOp op) {
  constexpr std::array<std::string_view, kNumStepOps> kNames = {
      "bookkeeping",      "rope_table",       "output_matmul",   "mlp_rms_norm",
      "gate_up_matmul",   "gated_activation", "down_matmul",     "moe_experts",
      "residual_add",     "embedding",        "input_rms_norm",  "qkv_matmul",
      "write_kv_pages",   "block_statistics", "select_blocks",   "dense_attention",
      "sparse_attention", "decode_attention", "output_rms_norm", "logits_matmul",
      "sampling"};
  return kNames.at(static_cast<size_t>(op));
}

}  // namespace fovea
