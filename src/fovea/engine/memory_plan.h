// What a session will take of its device's memory, added up before it takes any.
#pragma once

#include <cstdint>
#include <string>

#include "fovea/engine/kv_cache.h"
#include "fovea/engine/session.h"
#include "fovea/model_io/model_config.h"

namespace fovea {

/// What the sizes depend on.
struct MemoryQuestion {
  const ModelConfig* config = nullptr;
  DType compute_dtype = DType::kBF16;
  DType weight_dtype = DType::kBF16;  // of the layers' matrices
  Context context;
  KvCacheShape cache;
  AttentionSettings attention;
  int64_t max_len = 0;     // tokens of prompt and answer
  int64_t chunk_rows = 0;  // tokens of one step at most
};

/// Bytes, at most.
struct MemoryPlan {
  int64_t kv = 0;  // pages of K and V
  int64_t statistics = 0;
  int64_t chunk = 0;      // a step's buffers, see Transformer::activation_bytes()
  int64_t scratch = 0;    // a GPU's only: what its operations take for a moment
  int64_t selection = 0;  // a GPU's only: lists, and what selecting takes for a moment

  int64_t total() const { return kv + statistics + chunk + scratch + selection; }
};

MemoryPlan plan_memory(const MemoryQuestion& question);

/// Throws kOutOfMemory "<what> needs X of memory (what the parts are), the machine (or GPU N) has Y
/// free; try ..." unless the plan fits into what the device has free and, if positive, into
/// `limit`.
void check_plan(const MemoryPlan& plan, const std::string& what, Device device, int64_t limit);

}  // namespace fovea
