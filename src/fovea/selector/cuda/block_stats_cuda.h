// Statistics of KV blocks on the GPU; includes no CUDA header. Built with FOVEA_CUDA only.
#pragma once

#include "fovea/selector/block_stats.h"

namespace fovea {

/// compute_block_stats() for K/V, tables and statistics in GPU memory: bf16, block_size 128,
/// head_dim 64, 128 or 256. Sums run in another order than on the CPU, always the same. Tables are
/// read on the device and trusted. Throws kInvalidArgument on shapes that do not fit, kUnsupported
/// on others.
void compute_block_stats_cuda(const KvView& kv, int64_t seq, int64_t first_block, int64_t end_block,
                              int64_t block_offset, const BlockStatsView& stats,
                              const Context& context);

}  // namespace fovea
