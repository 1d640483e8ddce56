#include "fovea/engine/kv_cache.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "fovea/base/checked_math.h"
#include "fovea/engine/memory.h"

namespace fovea {

KvCache::KvCache(const KvCacheShape& shape) : shape_(shape) {
  check_argument(shape.num_layers > 0, "num_layers must be positive, got {}", shape.num_layers);
  check_argument(shape.num_kv_heads > 0, "num_kv_heads must be positive, got {}",
                 shape.num_kv_heads);
  check_argument(shape.head_dim > 0, "head_dim must be positive, got {}", shape.head_dim);
  check_argument(shape.page_size > 0, "page_size must be positive, got {}", shape.page_size);
  check_argument(shape.num_pages > 0, "num_pages must be positive, got {}", shape.num_pages);
  check_argument(!shape.codes || shape.page_size % 16 == 0,
                 "pages of K and V as codes must have a multiple of 16 tokens, got {}",
                 shape.page_size);
  if (shape.device.type != DeviceType::kCpu) {
    check_memory(
        checked_mul(page_kv_bytes() + page_stats_bytes(), shape.num_pages, "bytes of a KV cache"),
        fmt::format("KV of {} tokens", shape.num_pages * shape.page_size), "fewer tokens",
        shape.device);
  }
  for (int64_t i = 0; i < shape.num_layers; ++i) {
    Layer& layer = layers_.emplace_back();
    const std::initializer_list<int64_t> upright = {shape.num_pages, shape.num_kv_heads,
                                                    shape.page_size, shape.head_dim};
    const std::initializer_list<int64_t> turned = {shape.num_pages, shape.num_kv_heads,
                                                   shape.head_dim, shape.page_size};
    layer.k = Tensor(shape.element(), upright, shape.device);
    layer.v = Tensor(shape.element(), shape.codes ? turned : upright, shape.device);
    if (shape.codes) {
      layer.k_scale = Tensor(DType::kF32, {shape.num_pages, shape.num_kv_heads}, shape.device);
      layer.v_scale = Tensor(DType::kF32, {shape.num_pages, shape.num_kv_heads}, shape.device);
    }
    if (shape.with_stats) {
      layer.stats = BlockStats(shape.dtype, shape.num_pages, shape.num_kv_heads, shape.head_dim,
                               shape.page_size, shape.num_witnesses, shape.device);
    }
  }
  pages_.resize(static_cast<size_t>(shape.num_pages));
  free_.resize(static_cast<size_t>(shape.num_pages));
  std::iota(free_.rbegin(), free_.rend(), 0);  // page 0 is handed out first
}

int64_t kv_page_bytes(const KvCacheShape& shape) {
  const int64_t head_bytes = shape.page_size * shape.head_dim * dtype_bytes(shape.element()) +
                             (shape.codes ? dtype_bytes(DType::kF32) : 0);
  return 2 * shape.num_layers * shape.num_kv_heads * head_bytes;
}

int64_t stats_page_bytes(const KvCacheShape& shape) {
  if (!shape.with_stats) return 0;
  return shape.num_layers *
         block_stats_bytes(shape.dtype, shape.num_kv_heads, shape.head_dim, shape.num_witnesses);
}

KvView KvCache::kv(int64_t layer) const {
  const Layer& pages = layers_[static_cast<size_t>(layer)];
  KvView view;
  view.k = pages.k.view();
  view.v = pages.v.view();
  view.page_size = shape_.page_size;
  view.k_scale = pages.k_scale.view();
  view.v_scale = pages.v_scale.view();
  return view;
}

int64_t KvCache::num_available() const { return static_cast<int64_t>(free_.size() + idle_.size()); }

int32_t KvCache::acquire() {
  if (free_.empty() && idle_.empty()) {
    fail(ErrorCode::kOutOfMemory, "all {} pages of the KV cache are in use", shape_.num_pages);
  }
  int32_t page = 0;
  if (!free_.empty()) {
    page = free_.back();
    free_.pop_back();
  } else {
    page = idle_.front();
    forget(page);
  }
  pages_[static_cast<size_t>(page)].num_owners = 1;
  return page;
}

void KvCache::release(int32_t page) {
  Page& entry = pages_[static_cast<size_t>(page)];
  if (--entry.num_owners > 0) return;
  if (entry.published) {
    entry.idle = idle_.insert(idle_.end(), page);
  } else {
    free_.push_back(page);
  }
}

void KvCache::publish(int32_t page, uint64_t key, std::span<const int32_t> tokens) {
  Page& entry = pages_[static_cast<size_t>(page)];
  if (entry.published || !published_.emplace(key, page).second) return;
  entry.published = true;
  entry.key = key;
  entry.tokens.assign(tokens.begin(), tokens.end());
}

int32_t KvCache::find(uint64_t key, std::span<const int32_t> tokens) {
  const auto found = published_.find(key);
  if (found == published_.end()) return -1;
  Page& entry = pages_[static_cast<size_t>(found->second)];
  if (!std::equal(tokens.begin(), tokens.end(), entry.tokens.begin(), entry.tokens.end())) {
    return -1;
  }
  if (entry.num_owners++ == 0) idle_.erase(entry.idle);
  return found->second;
}

void KvCache::forget(int32_t page) {
  Page& entry = pages_[static_cast<size_t>(page)];
  idle_.erase(entry.idle);
  published_.erase(entry.key);
  entry.published = false;
  entry.tokens.clear();
}

}  // namespace fovea
