#include "fovea/attention/cuda/periphery.h"
#include "fovea/tensor/cuda/check.h"

namespace fovea::cuda {
namespace {

constexpr int kPackThreads = 256;

/// One CTA per tile of means, KV head and sequence; 16 bytes at a time.
__global__ __launch_bounds__(kPackThreads) void pack_means_kernel(const PrefillParams params,
                                                                  const MeanSource source,
                                                                  const PackedMeans packed,
                                                                  int head_dim) {
  const auto tile = static_cast<int>(blockIdx.x);
  const auto kv_head = static_cast<int>(blockIdx.y);
  const auto seq = static_cast<int>(blockIdx.z);
  const int chunks = head_dim / 8;  // of 16 bytes in a row
  const int64_t num_blocks = sequence_shape(params, seq).kv_len / params.block_size;
  const int64_t group = int64_t{seq} * gridDim.y + kv_head;
  const int64_t first_row = group * params.max_means + int64_t{tile} * packed.tile_rows;
  for (int i = static_cast<int>(threadIdx.x); i < packed.tile_rows * chunks; i += kPackThreads) {
    const int64_t block = int64_t{tile} * packed.tile_rows + i / chunks;
    const int column = i % chunks * 8;
    uint4 k{};
    uint4 v{};
    if (block < num_blocks) {
      const int64_t entry = params.page_table != nullptr
                                ? params.page_table[seq * params.page_table_stride + block]
                                : source.block_offsets[seq] + block;
      const auto at = [&](const void* base, const int64_t(&strides)[2]) {
        return reinterpret_cast<const uint4*>(static_cast<const uint16_t*>(base) +
                                              entry * strides[0] + kv_head * strides[1] + column);
      };
      k = *at(source.k_mean, source.k_strides);
      v = *at(source.v_mean, source.v_strides);
    }
    const int64_t to = (first_row + i / chunks) * chunks + i % chunks;
    static_cast<uint4*>(packed.k)[to] = k;
    static_cast<uint4*>(packed.v)[to] = v;
  }
}

}  // namespace

void launch_pack_means(const PrefillParams& params, const MeanSource& source,
                       const PackedMeans& packed, int head_dim, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>(params.max_means / packed.tile_rows),
                  static_cast<unsigned>(params.num_q_heads / params.group_size),
                  static_cast<unsigned>(params.batch_size));
  pack_means_kernel<<<grid, kPackThreads, 0, stream>>>(params, source, packed, head_dim);
  check_cuda(cudaGetLastError(), "launching pack_means_kernel");
}

}  // namespace fovea::cuda
