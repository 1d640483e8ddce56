// Attention of many query rows: tiles of rows walk packed keys, dense or by a selection's lists.
#pragma once

#include "fovea/attention/attention.h"
#include "fovea/attention/cpu/tile_kernel.h"

namespace fovea::cpu {

/// Computes the sequences of `params` that are not decode()'s. Scratch is linear in the keys: K and
/// V of some (sequence, KV head) pairs are packed, at most kMaxPackedBytes of them at a time or one
/// pair, whichever is more.
void prefill(const TileKernel& kernel, const AttentionParams& params, const Context& context);

constexpr int64_t kMaxPackedBytes = int64_t{16} << 20;

}  // namespace fovea::cpu
