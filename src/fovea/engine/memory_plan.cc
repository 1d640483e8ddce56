#include "fovea/engine/memory_plan.h"

#include <fmt/format.h>

#include <algorithm>

#include "fovea/base/checked_math.h"
#include "fovea/engine/memory.h"
#include "fovea/engine/transformer.h"
#include "fovea/ops/row_ops.h"
#include "fovea/selector/selection_buffer.h"

namespace fovea {
namespace {

/// Code and stacks of kernels, recorded steps, and small scratch that is not counted one by one.
constexpr int64_t kGpuMargin = int64_t{128} << 20;

}  // namespace

MemoryPlan plan_memory(const MemoryQuestion& question) {
  const ModelConfig& config = *question.config;
  const Device device = question.context.device;
  const int64_t rows = ceil_div(question.chunk_rows, kSlabRows) * kSlabRows;
  MemoryPlan plan;
  plan.kv = checked_mul(kv_page_bytes(question.cache), question.cache.num_pages, "KV bytes");
  plan.statistics =
      checked_mul(stats_page_bytes(question.cache), question.cache.num_pages, "statistics bytes");
  plan.chunk = Transformer::planned_bytes(config, question.compute_dtype, question.context,
                                          question.attention.kv_codes, rows);
  if (device.type == DeviceType::kCpu) return plan;
  RowScratchShape shape;
  shape.rows = rows;
  shape.model_dim = config.model_dim;
  shape.max_in_features =
      std::max({config.model_dim, config.num_q_heads * config.head_dim, config.mlp_dim});
  shape.num_experts = config.num_experts;
  shape.top_k = config.experts_per_token;
  shape.expert_dim = config.expert_dim;
  shape.weight_dtype = question.weight_dtype;
  plan.scratch = checked_add(row_scratch_bytes(shape, device), kGpuMargin, "scratch bytes");
  if (question.attention.selector) {
    plan.selection = planned_selection_bytes(*question.attention.selector,
                                             {.num_q_heads = config.num_q_heads,
                                              .num_kv_heads = config.num_kv_heads,
                                              .head_dim = config.head_dim,
                                              .rows = rows,
                                              .kv_len = question.max_len,
                                              .num_selections = config.num_layers},
                                             device);
  }
  return plan;
}

void check_plan(const MemoryPlan& plan, const std::string& what, Device device, int64_t limit) {
  int64_t available = free_memory_bytes(device);
  if (limit > 0) available = std::min(available, limit);
  if (plan.total() <= available) return;
  const bool is_cpu = device.type == DeviceType::kCpu;
  std::string parts;
  const auto add = [&](const char* name, int64_t bytes) {
    if (bytes > 0) {
      parts += fmt::format("{}{} {}", parts.empty() ? "" : ", ", name, memory_text(bytes));
    }
  };
  add("K and V", plan.kv);
  add("statistics", plan.statistics);
  add("a chunk's buffers", plan.chunk);
  add("scratch", plan.scratch);
  add("selection", plan.selection);
  const bool is_kv = plan.kv + plan.statistics > plan.total() / 2;
  fail(ErrorCode::kOutOfMemory, "{} needs {} of memory ({}), {} has {} free; try {}", what,
       memory_text(plan.total()), parts,
       is_cpu ? "the machine" : fmt::format("GPU {}", device.index), memory_text(available),
       is_kv ? "fewer tokens or a smaller chunk size" : "a smaller chunk size or fewer tokens");
}

}  // namespace fovea
