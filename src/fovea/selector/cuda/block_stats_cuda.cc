#include "fovea/selector/cuda/block_stats_cuda.h"

#include "fovea/attention/quantize_kv.h"
#include "fovea/base/error.h"
#include "fovea/tensor/cuda/device.h"

namespace fovea {
namespace cuda {

void launch_block_stats(const KvView& kv, int64_t seq, int64_t first_block, int64_t end_block,
                        int64_t block_offset, const BlockStatsView& stats, cudaStream_t stream);

}  // namespace cuda

namespace {

void check_tensor(const TensorView& tensor, const char* name, DType dtype, int64_t rows,
                  int64_t head_dim) {
  const bool fits = tensor.rank == (head_dim > 0 ? 3 : 2) && tensor.shape[1] == rows &&
                    (head_dim == 0 || tensor.shape[2] == head_dim);
  check_argument(!tensor.empty() && tensor.dtype == dtype && fits,
                 "{} must be {} with {} rows of {}, got {}", name, dtype_name(dtype), rows,
                 head_dim, tensor.describe());
}

}  // namespace

void compute_block_stats_cuda(const KvView& kv, int64_t seq, int64_t first_block, int64_t end_block,
                              int64_t block_offset, const BlockStatsView& stats,
                              const Context& context) {
  const int64_t head_dim = kv.head_dim(), num_kv_heads = kv.num_kv_heads();
  const bool is_f8 = kv.k.dtype == DType::kF8E4M3;
  if (is_f8) {
    check_code_pages(kv);
  } else {
    check_argument(
        kv.v.dtype == kv.k.dtype && kv.v.shape == kv.k.shape && kv.v.stride == kv.k.stride,
        "v must be like k, {}, got {}", kv.k.describe(), kv.v.describe());
  }
  check_argument(
      0 <= first_block && first_block <= end_block && end_block - first_block < INT32_MAX,
      "blocks must satisfy 0 <= first <= end, got {} and {}", first_block, end_block);
  check_argument(!kv.is_paged() || kv.page_size == stats.block_size,
                 "page_size must be the statistics' block_size {}, got {}", stats.block_size,
                 kv.page_size);
  const auto is_size = [](int64_t size) { return size == 64 || size == 128 || size == 256; };
  const DType dtype = is_f8 ? DType::kBF16 : kv.k.dtype;  // of the statistics
  const bool has_f8 = head_dim == 128 && stats.block_size == 128 && kv.k_scale.rank == 2;
  if (is_f8 && !has_f8) {
    fail(ErrorCode::kUnsupported,
         "block statistics of f8e4m3 keys need head_dim 128, block_size 128 and a scale for each "
         "page; got {}, {}, {}",
         head_dim, stats.block_size, kv.k_scale.describe());
  }
  if ((dtype != DType::kBF16 && dtype != DType::kF16) || !is_size(stats.block_size) ||
      !is_size(head_dim) || (stats.block_size == 256 && head_dim == 256)) {
    fail(ErrorCode::kUnsupported,
         "block statistics on the GPU are bf16 or f16, block_size and head_dim 64, 128 or 256 but "
         "not "
         "both 256; got {}, {}, {}",
         dtype_name(kv.k.dtype), stats.block_size, head_dim);
  }
  check_argument(stats.num_witnesses >= 0 && stats.num_witnesses <= kMaxWitnesses,
                 "num_witnesses must be in 0 ... {}, got {}", kMaxWitnesses, stats.num_witnesses);
  check_tensor(stats.centroid, "stats.centroid", dtype, num_kv_heads, head_dim);
  check_tensor(stats.v_mean, "stats.v_mean", dtype, num_kv_heads, head_dim);
  check_tensor(stats.radius, "stats.radius", DType::kF32, num_kv_heads, 0);
  check_tensor(stats.non_finite, "stats.non_finite", DType::kI32, num_kv_heads, 0);
  if (stats.num_witnesses > 0) {
    check_tensor(stats.witness, "stats.witness", dtype, num_kv_heads * stats.num_witnesses,
                 head_dim);
    check_tensor(stats.rest_mean, "stats.rest_mean", dtype, num_kv_heads, head_dim);
  }
  // Rows are read 16 bytes at a time.
  for (const int64_t stride :
       {kv.k.stride[0], kv.k.stride[1], kv.k.stride[kv.is_paged() ? 2 : 0]}) {
    check_argument(stride % 8 == 0, "strides of k must be multiples of 8 elements, got {}", stride);
  }
  if (first_block == end_block) return;
  const cuda::DeviceScope scope(context);
  cuda::launch_block_stats(kv, seq, first_block, end_block, block_offset, stats,
                           cuda::stream_of(context));
}

}  // namespace fovea
