#include "fovea/attention/cuda/check.h"
#include "fovea/selector/cuda/select_launch.h"

namespace fovea::cuda {
namespace {

constexpr int kResetThreads = 256;

/// The shared list 0, 1, 2 ..., the counters, and where each sequence's query blocks begin.
__global__ void reset_kernel(const SelectParams params, int64_t* q_block_offsets,
                             int max_batch_size) {
  const int first = static_cast<int>(blockIdx.x) * kResetThreads + static_cast<int>(threadIdx.x);
  const int shared_entries = params.facts.max_blocks + 1;
  for (int i = first; i < shared_entries; i += static_cast<int>(gridDim.x) * kResetThreads) {
    params.pool[i] = i;
  }
  if (first != 0) return;
  for (int c = 0; c < kNumCounters; ++c) params.counters[c] = 0;
  params.counters[kPoolUsed] = static_cast<unsigned long long>(shared_entries);
  int64_t offset = 0;
  for (int s = 0; s < params.batch_size; ++s) {
    q_block_offsets[s] = offset;
    const int64_t q_len = params.q_offsets[s + 1] - params.q_offsets[s];
    const int64_t kv_len = params.kv_lens[s];
    if (q_len > 0) {
      offset +=
          (kv_len + kSelectBlockSize - 1) / kSelectBlockSize - (kv_len - q_len) / kSelectBlockSize;
    }
  }
  for (int s = params.batch_size; s <= max_batch_size; ++s) q_block_offsets[s] = offset;
}

}  // namespace

void launch_pool_reset(const SelectParams& params, int64_t* q_block_offsets, int64_t batch_size,
                       cudaStream_t stream) {
  reset_kernel<<<8, kResetThreads, 0, stream>>>(params, q_block_offsets,
                                                static_cast<int>(batch_size));
  check_cuda(cudaGetLastError(), "launching reset_kernel");
}

}  // namespace fovea::cuda
