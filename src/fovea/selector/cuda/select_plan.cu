#include <algorithm>

#include "fovea/selector/cuda/select_launch.h"
#include "fovea/tensor/cuda/check.h"

namespace fovea::cuda {
namespace {

constexpr int kPlanThreads = 128;

/// Query blocks [first, end) of a sequence.
struct BlockRange {
  int first = 0;
  int end = 0;
};
__device__ BlockRange query_blocks(const SelectParams& p, int seq) {
  const int64_t q_len = p.q_offsets[seq + 1] - p.q_offsets[seq];
  const int64_t kv_len = p.kv_lens[seq];
  BlockRange range;
  range.first = static_cast<int>((kv_len - q_len) / p.block_size);
  range.end =
      q_len > 0 ? static_cast<int>((kv_len + p.block_size - 1) / p.block_size) : range.first;
  return range;
}

/// Block `q_block` of sequence `seq`, whose lists start at `lists_before`.
__device__ QueryBlock describe_query_block(const SelectParams& p, int seq, int q_block,
                                           int64_t lists_before) {
  QueryBlock block;
  block.seq = seq;
  block.q_block = q_block;
  const int64_t q_begin = p.q_offsets[seq];
  const int64_t q_len = p.q_offsets[seq + 1] - q_begin;
  const int64_t kv_len = p.kv_lens[seq];
  const int first = query_blocks(p, seq).first;
  const int64_t before = int64_t{q_block - first} * p.block_size;
  block.q_row = static_cast<int>(q_begin + before);
  block.num_rows = static_cast<int>(min(q_len - before, static_cast<int64_t>(p.block_size)));
  block.first_list = lists_before + q_block - first;

  const int64_t prompt_len = p.prompt_lens != nullptr ? p.prompt_lens[seq] : kv_len;
  const int64_t prompt_blocks = (prompt_len + p.block_size - 1) / p.block_size;
  const bool is_dense = prompt_len < p.min_sparse_len ||
                        q_block >= max(prompt_blocks - p.dense_tail_blocks, int64_t{0});
  const int64_t end = q_block + 1;
  block.sink_end = static_cast<int>(is_dense ? end : min(p.sink_blocks, end));
  block.local_begin =
      static_cast<int>(max(static_cast<int64_t>(block.sink_end), end - p.local_blocks));
  return block;
}

/// One thread per query block, in order of sequences. A block's place is the number of blocks that
/// are longer: those at higher positions, or at the same in an earlier sequence.
__global__ void plan_kernel(const SelectParams p, int max_batch_size, int max_blocks) {
  const int number = static_cast<int>(blockIdx.x) * kPlanThreads + static_cast<int>(threadIdx.x);
  const int shared_entries = p.facts.max_blocks + 1;
  for (int i = number; i < shared_entries; i += static_cast<int>(gridDim.x) * kPlanThreads) {
    p.pool[i] = i;
  }
  int seq = -1;
  int q_block = 0;
  int lists_before = 0;
  int before = 0;
  for (int s = 0; s < p.batch_size; ++s) {
    const BlockRange range = query_blocks(p, s);
    const int count = range.end - range.first;
    if (number == 0) p.q_block_offsets[s] = before;
    if (number >= before && number < before + count) {
      seq = s;
      q_block = range.first + number - before;
      lists_before = before;
    }
    before += count;
  }
  if (number == 0) {
    for (int s = p.batch_size; s <= max_batch_size; ++s) p.q_block_offsets[s] = before;
    for (int c = 0; c < kNumCounters; ++c) p.counters[c] = 0;
    p.counters[kPoolUsed] = static_cast<unsigned long long>(shared_entries);
    *p.plan.num_blocks = min(before, max_blocks);
    *p.plan.next_work = 0;
  }
  if (seq < 0 || number >= max_blocks) return;
  int place = 0;
  for (int s = 0; s < p.batch_size; ++s) {
    const BlockRange range = query_blocks(p, s);
    place += max(0, range.end - max(range.first, q_block + 1));
    if (s < seq && range.first <= q_block && q_block < range.end) ++place;
  }
  p.plan.blocks[place] = describe_query_block(p, seq, q_block, lists_before);
}

}  // namespace

void launch_select_plan(const SelectParams& params, int64_t max_batch_size, int64_t max_blocks,
                        cudaStream_t stream) {
  const auto num_ctas =
      static_cast<unsigned>((std::max<int64_t>(max_blocks, 1) + kPlanThreads - 1) / kPlanThreads);
  plan_kernel<<<num_ctas, kPlanThreads, 0, stream>>>(params, static_cast<int>(max_batch_size),
                                                     static_cast<int>(max_blocks));
  check_cuda(cudaGetLastError(), "launching plan_kernel");
}

}  // namespace fovea::cuda
