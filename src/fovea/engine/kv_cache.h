// Pages of keys and values with their statistics, shared by sequences; full pages can be found
// again.
#pragma once

#include <cstdint>
#include <list>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "fovea/attention/kv_view.h"
#include "fovea/selector/block_stats.h"

namespace fovea {

struct KvCacheShape {
  Device device = {};
  DType dtype = DType::kBF16;  // of statistics, and of K and V unless they are codes
  int64_t num_layers = 0;
  int64_t num_kv_heads = 0;
  int64_t head_dim = 0;
  int64_t page_size = 128;
  int64_t num_pages = 0;
  int64_t num_witnesses = 0;
  bool with_stats = false;  // dense sequences need none
  /// K and V are codes with a scale for each page and head, see attention/append_kv.h.
  std::optional<DType> codes = {};

  /// Of K and V.
  DType element() const { return codes.value_or(dtype); }
};

/// Bytes that one page of such a cache takes in all layers: of K and V, and of statistics.
int64_t kv_page_bytes(const KvCacheShape& shape);
int64_t stats_page_bytes(const KvCacheShape& shape);

/// A page holds page_size tokens of all layers. Pages have owners counted; a page without owners
/// that was published stays findable until its memory is needed, the longest unused first.
///
/// Not safe for use by two threads at once.
class KvCache {
 public:
  /// Throws kInvalidArgument on sizes that are not positive, kOutOfMemory as Tensor does. On the
  /// CPU pages take memory when first written, on a GPU all at once.
  explicit KvCache(const KvCacheShape& shape);

  const KvCacheShape& shape() const { return shape_; }
  /// K and V of `layer`, without a page table; with the scales of codes.
  KvView kv(int64_t layer) const;
  /// Statistics beside the pages of `layer`; empty views without with_stats.
  const BlockStatsView& stats(int64_t layer) const {
    return layers_[static_cast<size_t>(layer)].stats.view();
  }

  int64_t page_kv_bytes() const { return kv_page_bytes(shape_); }
  int64_t page_stats_bytes() const { return stats_page_bytes(shape_); }

  /// Pages that acquire() can still hand out.
  int64_t num_available() const;
  /// An unused page with one owner. Throws kOutOfMemory naming the pages there are.
  int32_t acquire();
  /// One owner fewer.
  void release(int32_t page);

  /// Makes a full page findable under `key`; a second page of the same key is ignored.
  void publish(int32_t page, uint64_t key, std::span<const int32_t> tokens);
  /// The page published under `key` with the same tokens, with one owner more; -1 when there is
  /// none.
  int32_t find(uint64_t key, std::span<const int32_t> tokens);

 private:
  struct Layer {
    Tensor k, v;  // [num_pages, num_kv_heads, page_size, head_dim]; V of codes is turned
    Tensor k_scale, v_scale;  // f32 [num_pages, num_kv_heads], of codes
    BlockStats stats;
  };
  struct Page {
    int32_t num_owners = 0;
    bool published = false;
    uint64_t key = 0;
    std::vector<int32_t> tokens;
    std::list<int32_t>::iterator idle;  // place in idle_ while published and without owners
  };
  void forget(int32_t page);

  KvCacheShape shape_;
  std::vector<Layer> layers_;
  std::vector<Page> pages_;
  std::vector<int32_t> free_;
  std::list<int32_t> idle_;  // longest unused first
  std::unordered_map<uint64_t, int32_t> published_;
};

}  // namespace fovea
