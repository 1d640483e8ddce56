#include "fovea/attention/cuda/prefill_plan.h"
#include "fovea/attention/cuda/prefill_tiles.h"
#include "fovea/tensor/cuda/check.h"

namespace fovea::cuda {
namespace {

constexpr int kPlanThreads = 128;

/// One thread per tile number, in order of sequences. A tile's place is the number of tiles that
/// are longer: those at higher positions, or at the same in an earlier sequence. That is O(batch)
/// per tile and needs neither a sort nor a host.
__global__ void plan_kernel(const PrefillParams params, int batch_size, int max_tiles) {
  const int number = static_cast<int>(blockIdx.x) * kPlanThreads + static_cast<int>(threadIdx.x);
  int seq = 0;
  int q_tile = 0;
  int before = 0;
  bool exists = false;
  for (int s = 0; s < batch_size; ++s) {
    const SequenceShape shape = sequence_shape(params, s);
    const int count = shape.end_q_tile() - shape.first_q_tile();
    if (number >= before && number < before + count) {
      seq = s;
      q_tile = shape.first_q_tile() + number - before;
      exists = true;
    }
    before += count;
  }
  if (number == 0) {
    *params.plan.num_tiles = min(before, max_tiles);
    *params.plan.next_work = 0;
  }
  if (!exists || number >= max_tiles) return;
  int place = 0;
  for (int s = 0; s < batch_size; ++s) {
    const SequenceShape shape = sequence_shape(params, s);
    const int first = shape.first_q_tile();
    const int end = shape.end_q_tile();
    place += max(0, end - max(first, q_tile + 1));
    if (s < seq && first <= q_tile && q_tile < end) ++place;
  }
  params.plan.tiles[place] = QTile{seq, q_tile};
}

}  // namespace

void launch_prefill_plan(const PrefillParams& params, int64_t batch_size, int64_t total_q,
                         cudaStream_t stream) {
  const auto max_tiles = static_cast<int>(max_q_tiles(total_q, batch_size));
  const auto num_ctas = static_cast<unsigned>((max_tiles + kPlanThreads - 1) / kPlanThreads);
  plan_kernel<<<num_ctas, kPlanThreads, 0, stream>>>(params, static_cast<int>(batch_size),
                                                     max_tiles);
  check_cuda(cudaGetLastError(), "launching plan_kernel");
}

}  // namespace fovea::cuda
