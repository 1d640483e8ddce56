#include "fovea/selector/block_stats.h"

#include "fovea/attention/code_pages.h"
#include "fovea/attention/quantize_kv.h"
#include "fovea/base/checked_math.h"
#include "fovea/base/cpu_features.h"
#include "fovea/base/error.h"
#include "fovea/base/parallel.h"
#include "fovea/selector/cpu/block_stats_task.h"
#ifdef FOVEA_WITH_CUDA
#include "fovea/selector/cuda/block_stats_cuda.h"
#endif

namespace fovea {
namespace {

BlockStatsKernel best_kernel() {
#if defined(__x86_64__)
  if (cpu_features().avx512) return block_stats_avx512;
  if (cpu_features().avx2) return block_stats_avx2;
#endif
  return block_stats_portable;
}

// Address of element [i, j, 0] of a tensor of rank 2 or 3.
void* at(const TensorView& tensor, int64_t i, int64_t j) {
  return tensor.as<char>() +
         (i * tensor.stride[0] + j * tensor.stride[1]) * dtype_bytes(tensor.dtype);
}

void check_stats_tensor(const TensorView& tensor, const char* name, DType dtype, int64_t entries,
                        int64_t rows, int64_t head_dim) {
  const bool fits = tensor.rank == (head_dim > 0 ? 3 : 2) && tensor.shape[0] == entries &&
                    tensor.shape[1] == rows && (head_dim == 0 || tensor.shape[2] == head_dim);
  check_argument(!tensor.empty() && tensor.dtype == dtype && fits,
                 "{} must be {}[{}, {}{}], got {}", name, dtype_name(dtype), entries, rows,
                 head_dim > 0 ? fmt::format(", {}", head_dim) : "", tensor.describe());
}

}  // namespace

BlockStats::BlockStats(DType dtype, int64_t num_pages, int64_t num_kv_heads, int64_t head_dim,
                       int64_t block_size, int64_t num_witnesses, Device device) {
  check_argument(dtype == DType::kF32 || dtype == DType::kBF16,
                 "block statistics must be f32 or bf16, got {}", dtype_name(dtype));
  check_argument(num_witnesses >= 0 && num_witnesses <= kMaxWitnesses,
                 "num_witnesses must be in 0 ... {}, got {}", kMaxWitnesses, num_witnesses);
  check_argument(block_size > num_witnesses, "block_size must exceed num_witnesses, got {} and {}",
                 block_size, num_witnesses);
  centroid_ = Tensor(dtype, {num_pages, num_kv_heads, head_dim}, device);
  radius_ = Tensor(DType::kF32, {num_pages, num_kv_heads}, device);
  v_mean_ = Tensor(dtype, {num_pages, num_kv_heads, head_dim}, device);
  non_finite_ = Tensor(DType::kI32, {num_pages, num_kv_heads}, device);
  if (num_witnesses > 0) {
    witness_ = Tensor(
        dtype, {num_pages, checked_mul(num_kv_heads, num_witnesses, "witness rows"), head_dim},
        device);
    rest_mean_ = Tensor(dtype, {num_pages, num_kv_heads, head_dim}, device);
  }
  view_ = {block_size,      centroid_.view(),  radius_.view(),     v_mean_.view(),
           witness_.view(), rest_mean_.view(), non_finite_.view(), num_witnesses};
}

int64_t block_stats_bytes(DType dtype, int64_t num_kv_heads, int64_t head_dim,
                          int64_t num_witnesses) {
  const int64_t rows = 2 + (num_witnesses > 0 ? num_witnesses + 1 : 0);
  return num_kv_heads * (rows * head_dim * dtype_bytes(dtype) + dtype_bytes(DType::kF32) +
                         dtype_bytes(DType::kI32));
}

int64_t BlockStats::size_bytes() const {
  return centroid_.size_bytes() + radius_.size_bytes() + v_mean_.size_bytes() +
         witness_.size_bytes() + rest_mean_.size_bytes() + non_finite_.size_bytes();
}

void compute_block_stats(const KvView& kv, int64_t seq, int64_t first_block, int64_t end_block,
                         int64_t block_offset, const BlockStatsView& stats,
                         const Context& context) {
#ifdef FOVEA_WITH_CUDA
  if (context.device.type == DeviceType::kCuda) {
    compute_block_stats_cuda(kv, seq, first_block, end_block, block_offset, stats, context);
    return;
  }
#endif
  const int64_t block_size = stats.block_size;
  check_argument(context.device.type == DeviceType::kCpu,
                 "this build has block statistics on the CPU only");
  const bool holds_codes = kv.holds_codes();
  check_argument(kv.k.dtype == DType::kF32 || kv.k.dtype == DType::kBF16 || holds_codes,
                 "k must be f32, bf16, f8e4m3 or i8, got {}", kv.k.describe());
  if (holds_codes) check_code_pages(kv);
  const int32_t rank = kv.is_paged() ? 4 : 3;
  const auto last = static_cast<size_t>(rank - 1);
  check_argument(!kv.k.empty() && kv.k.rank == rank && kv.k.stride[last] == 1,
                 "k must have {} axes, the last of stride 1, got {}", rank, kv.k.describe());
  check_argument(!kv.v.empty() && kv.v.dtype == kv.k.dtype && kv.v.rank == rank &&
                     (holds_codes || kv.v.shape == kv.k.shape) && kv.v.stride[last] == 1,
                 "v must be like k, {}, got {}", kv.k.describe(), kv.v.describe());
  check_argument(!kv.is_paged() || kv.k.shape[2] == kv.page_size,
                 "pages of k must have {} slots, got {}", kv.page_size, kv.k.describe());
  check_argument(kv.is_paged() ? kv.page_table != nullptr : kv.kv_offsets != nullptr,
                 "{} must not be null", kv.is_paged() ? "page_table" : "kv_offsets");
  check_argument(seq >= 0, "seq must not be negative, got {}", seq);
  const int64_t num_kv_heads = kv.num_kv_heads(), head_dim = kv.head_dim();
  check_argument(0 <= first_block && first_block <= end_block,
                 "blocks must satisfy 0 <= first <= end, got {} and {}", first_block, end_block);
  check_argument(block_size > 0 && (!kv.is_paged() || kv.page_size == block_size),
                 "page_size must be the statistics' block_size {}, got {}", block_size,
                 kv.page_size);
  check_argument(stats.num_witnesses >= 0 && stats.num_witnesses <= kMaxWitnesses &&
                     stats.num_witnesses < block_size,
                 "num_witnesses must be in 0 ... {} and below block_size, got {}", kMaxWitnesses,
                 stats.num_witnesses);
  const int64_t entries = stats.centroid.shape[0];
  const DType dtype = holds_codes ? stats.centroid.dtype : kv.k.dtype;
  check_argument(dtype == DType::kF32 || dtype == DType::kBF16,
                 "stats.centroid must be f32 or bf16, got {}", stats.centroid.describe());
  check_stats_tensor(stats.centroid, "stats.centroid", dtype, entries, num_kv_heads, head_dim);
  check_stats_tensor(stats.radius, "stats.radius", DType::kF32, entries, num_kv_heads, 0);
  check_stats_tensor(stats.v_mean, "stats.v_mean", dtype, entries, num_kv_heads, head_dim);
  check_stats_tensor(stats.non_finite, "stats.non_finite", DType::kI32, entries, num_kv_heads, 0);
  if (stats.num_witnesses > 0) {
    check_stats_tensor(stats.witness, "stats.witness", dtype, entries,
                       checked_mul(num_kv_heads, stats.num_witnesses, "witness rows"), head_dim);
    check_stats_tensor(stats.rest_mean, "stats.rest_mean", dtype, entries, num_kv_heads, head_dim);
  }
  if (kv.is_paged()) {
    check_argument(end_block <= kv.page_table_stride,
                   "page_table must name block {}, has room for {}", end_block,
                   kv.page_table_stride);
  } else {
    check_argument(block_offset >= 0 && block_offset <= entries - end_block,
                   "blocks must lie in the statistics, got {} + {} of {}", block_offset, end_block,
                   entries);
    const int64_t first = kv.kv_offsets[seq];
    check_argument(first >= 0 && end_block <= (kv.k.shape[0] - first) / block_size,
                   "blocks up to {} must lie in k, which holds {} rows from {}", end_block,
                   kv.k.shape[0] - first, first);
  }
  for (int64_t b = first_block; kv.is_paged() && b < end_block; ++b) {
    const int32_t page = kv.page_table[seq * kv.page_table_stride + b];
    check_argument(page >= 0 && page < kv.num_pages() && page < entries,
                   "page_table[{}][{}] must be in 0 ... {}, got {}", seq, b, kv.num_pages() - 1,
                   page);
  }

  const BlockStatsKernel kernel = best_kernel();
  const int32_t num_threads = resolve_num_threads(context);
  std::vector<float> scratch(static_cast<size_t>(num_threads * block_size));
  const int64_t row_axis = kv.is_paged() ? 2 : 0;
  const int64_t row_bytes = head_dim * dtype_bytes(dtype);
  const int64_t numbers_bytes = holds_codes ? 2 * block_size * row_bytes : 0;  // of a page of codes
  std::vector<std::byte> numbers(static_cast<size_t>(num_threads * numbers_bytes));
  parallel_for(context, (end_block - first_block) * num_kv_heads, [&](int64_t t, int32_t thread) {
    const int64_t block = first_block + t / num_kv_heads, head = t % num_kv_heads;
    const int64_t entry =
        kv.is_paged() ? kv.page_table[seq * kv.page_table_stride + block] : block_offset + block;
    const int64_t row = kv.is_paged() ? entry : kv.kv_offsets[seq] + block * block_size;
    BlockStatsTask task;
    task.is_bf16 = dtype == DType::kBF16;
    task.block_size = block_size;
    task.head_dim = head_dim;
    task.num_witnesses = stats.num_witnesses;
    if (holds_codes) {
      std::byte* const keys = numbers.data() + thread * numbers_bytes;
      std::byte* const values = keys + block_size * row_bytes;
      read_code_keys(kv, entry, head, 0, block_size, {dtype, keys, row_bytes});
      read_code_values(kv, entry, head, 0, block_size, {dtype, values, row_bytes});
      task.keys = keys;
      task.values = values;
      task.key_stride = task.value_stride = head_dim;
    } else {
      task.keys = at(kv.k, row, head);
      task.values = at(kv.v, row, head);
      task.key_stride = kv.k.stride[static_cast<size_t>(row_axis)];
      task.value_stride = kv.v.stride[static_cast<size_t>(row_axis)];
    }
    task.centroid = at(stats.centroid, entry, head);
    task.v_mean = at(stats.v_mean, entry, head);
    if (stats.num_witnesses > 0) {
      task.witness = at(stats.witness, entry, head * stats.num_witnesses);
      task.witness_stride = stats.witness.stride[1];
      task.rest_mean = at(stats.rest_mean, entry, head);
    }
    task.radius = static_cast<float*>(at(stats.radius, entry, head));
    task.non_finite = static_cast<int32_t*>(at(stats.non_finite, entry, head));
    task.scratch = scratch.data() + static_cast<int64_t>(thread) * block_size;
    kernel(task);
  });
}

}  // namespace fovea
