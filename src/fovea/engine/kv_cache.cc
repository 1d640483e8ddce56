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
  if (shape.device.type != DeviceType::kCpu) {
    check_memory(checked_mul(page_kv_bytes(), shape.num_pages, "bytes of a KV cache"),
                 fmt::format("KV of {} tokens", shape.num_pages * shape.page_size), "fewer tokens",
                 shape.device);
  }
  for (int64_t i = 0; i < shape.num_layers; ++i) {
    Layer& layer = layers_.emplace_back();
    for (Tensor* tensor : {&layer.k, &layer.v}) {
      *tensor = Tensor(shape.dtype,
                       {shape.num_pages, shape.num_kv_heads, shape.page_size, shape.head_dim},
                       shape.device);
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

int64_t KvCache::page_kv_bytes() const {
  return 2 * shape_.num_layers * shape_.num_kv_heads * shape_.page_size * shape_.head_dim *
         dtype_bytes(shape_.dtype);
}

int64_t KvCache::page_stats_bytes() const {
  int64_t bytes = 0;
  for (const Layer& layer : layers_) bytes += layer.stats.size_bytes();
  return bytes / shape_.num_pages;
}

int64_t KvCache::growth_bytes(int64_t num_pages) const {
  if (shape_.device.type != DeviceType::kCpu) return 0;
  return num_pages * (page_kv_bytes() + page_stats_bytes());
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
