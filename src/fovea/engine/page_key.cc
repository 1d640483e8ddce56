#include "fovea/engine/page_key.h"

#include <fmt/ranges.h>

#include <string>
#include <string_view>

#include "fovea/base/checked_math.h"
#include "fovea/model_io/model_config.h"

namespace fovea {
namespace {

/// FNV-1a.
uint64_t hash_bytes(uint64_t hash, std::string_view bytes) {
  for (const char byte : bytes) {
    hash = (hash ^ static_cast<uint8_t>(byte)) * 0x100000001b3u;
  }
  return hash;
}

std::string settings_text(const SelectorSettings& s) {
  return fmt::format(
      "{} {} {} {} {} {} {} {} {} {} {} {} {} {} {} {} {} {} {} {} {} {} {} {} {} {} {} {} {}",
      selector_method_name(s.method), s.block_size, s.alpha_base, s.alpha_rescue, s.quantile_low,
      s.quantile_high, static_cast<int>(s.quantiles), s.uplift_clamp, s.forced_in_maximum,
      s.density, s.rescue_share, s.sink_blocks, s.local_blocks, s.dense_tail_blocks,
      s.streaming_sink_tokens, s.streaming_local_tokens, s.num_witnesses,
      static_cast<int>(s.aggregation), s.coverage, s.antidiagonal_stride, s.least_similarity,
      s.nearest_gap, s.mass_power, s.least_peak, static_cast<int>(s.witness_choice), s.f8_witnesses,
      s.calm_quantile, s.skip_by_bound, s.lists_per_kv_head);
}

}  // namespace

KvCacheShape kv_cache_shape(const Model& model, const AttentionSettings& attention,
                            int64_t max_len) {
  const ModelConfig& config = model.config();
  KvCacheShape shape;
  shape.device = model.context().device;
  shape.dtype = model.compute_dtype();
  shape.num_layers = config.num_layers;
  shape.num_kv_heads = config.num_kv_heads;
  shape.head_dim = config.head_dim;
  shape.codes = attention.kv_codes;
  if (attention.selector && attention.selector->method != SelectorMethod::kAll) {
    const SelectorSettings& settings = *attention.selector;
    shape.page_size = settings.block_size;
    shape.with_stats = true;
    if (reads_witnesses(settings.method)) shape.num_witnesses = settings.num_witnesses;
  }
  shape.num_pages = ceil_div(max_len, shape.page_size);
  return shape;
}

uint64_t root_page_key(const Model& model, const AttentionSettings& attention, bool sparse) {
  std::string text = fmt::format("{} {}", model.path(), dtype_name(model.compute_dtype()));
  if (attention.kv_codes) text += fmt::format(" {}", dtype_name(*attention.kv_codes));
  if (sparse) {
    text += fmt::format(" {} {} {}", settings_text(*attention.selector),
                        fmt::join(attention.layer_budgets, ","), attention.periphery);
  }
  return hash_bytes(0xcbf29ce484222325u, text);
}

uint64_t next_page_key(uint64_t parent, std::span<const int32_t> tokens) {
  return hash_bytes(parent, {reinterpret_cast<const char*>(tokens.data()), tokens.size_bytes()});
}

}  // namespace fovea
