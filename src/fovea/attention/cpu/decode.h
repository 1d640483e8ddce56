// Attention of few query rows per sequence: the keys are split across threads, read once and in
// place.
#pragma once

#include "fovea/attention/attention.h"
#include "fovea/attention/cpu/tile_kernel.h"

namespace fovea::cpu {

/// Whether decode() rather than prefill() computes sequence s: at most kMaxDecodeRows query rows
/// per KV head, all of one query block if there is a selection, and no periphery.
bool is_decode(const AttentionParams& params, int64_t s);

/// Computes the sequences that is_decode() names. Where keys are split, at multiples of kSplitKeys
/// and where the lists of a KV head's query heads part, depends on neither the batch nor the
/// threads, nor does what value_share leaves out, so a sequence's result does not either.
void decode(const TileKernel& kernel, const AttentionParams& params, const Context& context);

}  // namespace fovea::cpu
