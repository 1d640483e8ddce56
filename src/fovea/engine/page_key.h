// Names of full pages in the prefix cache: a hash of everything that their content depends on.
#pragma once

#include <cstdint>
#include <span>

#include "fovea/engine/kv_cache.h"
#include "fovea/engine/session.h"

namespace fovea {

/// Shape of the cache that a session with these settings needs for `max_len` tokens.
KvCacheShape kv_cache_shape(const Model& model, const AttentionSettings& attention,
                            int64_t max_len);

/// The key before the first page: the model, its types and, when `sparse`, every setting of the
/// selection. KV computed under one selection is never served to another.
uint64_t root_page_key(const Model& model, const AttentionSettings& attention, bool sparse);

/// The key of a page with `tokens` that follows the page named `parent`.
uint64_t next_page_key(uint64_t parent, std::span<const int32_t> tokens);

}  // namespace fovea
