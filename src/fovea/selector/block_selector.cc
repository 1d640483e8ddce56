// Checks a call and finds the backend for it.
#include "fovea/selector/block_selector.h"

#include <cmath>
#include <cstdlib>
#include <limits>
#include <string>

#include "fovea/attention/code_pages.h"
#include "fovea/base/checked_math.h"
#include "fovea/base/error.h"
#include "fovea/base/parallel.h"
#include "fovea/selector/cpu/cpu_selector.h"
#include "fovea/selector/fixed_selector.h"
#include "fovea/selector/lab/lab_selector.h"
#include "fovea/selector/reference/reference_selector.h"

#ifdef FOVEA_WITH_CUDA
#include "fovea/selector/cuda/cuda_selector.h"
#endif

namespace fovea {
namespace {

bool scores(SelectorMethod method) {
  return method != SelectorMethod::kAll && method != SelectorMethod::kStreaming;
}

void check_tensor(const TensorView& tensor, const char* name, DType dtype, int32_t rank,
                  const Context& context) {
  const bool present = !tensor.empty() || (tensor.rank > 0 && tensor.num_elements() == 0);
  check_argument(present && tensor.rank == rank, "{} must have rank {}, got {}", name, rank,
                 present ? tensor.describe() : "nothing");
  check_argument(tensor.dtype == dtype, "{} must be {}, got {}", name, dtype_name(dtype),
                 tensor.describe());
  check_argument(tensor.device == context.device, "{} must be on the operation's device", name);
  check_argument(tensor.stride[static_cast<size_t>(rank - 1)] == 1,
                 "{} must have last stride 1, got {}", name,
                 tensor.stride[static_cast<size_t>(rank - 1)]);
}

void check_shape(const TensorView& tensor, const char* name,
                 std::initializer_list<int64_t> expected) {
  size_t axis = 0;
  for (int64_t size : expected) {
    check_argument(tensor.shape[axis] == size, "{} must have size {} in axis {}, got {}", name,
                   size, axis, tensor.describe());
    ++axis;
  }
}

bool reads_keys(const SelectorSettings& settings) {
  return settings.method == SelectorMethod::kOracle || is_lab(settings);
}

void check_q_and_kv(const SelectorParams& params, const Context& context) {
  const TensorView& q = params.q;
  const bool has_f16 = context.device.type == DeviceType::kCuda;
  check_argument(
      q.dtype == DType::kF32 || q.dtype == DType::kBF16 || (q.dtype == DType::kF16 && has_f16),
      "q must be f32 or bf16, or f16 on a GPU, got {}", q.describe());
  check_tensor(q, "q", q.dtype, 3, context);
  check_argument(q.shape[1] > 0 && q.shape[2] > 0, "q must have heads and head_dim, got {}",
                 q.describe());
  const KvView& kv = params.kv;
  check_argument(kv.page_size >= 0, "page_size must not be negative, got {}", kv.page_size);
  // `oracle` and the lab read keys: of codes only those of the CPU's pages, see widen_keys().
  const bool holds_codes =
      kv.holds_codes() &&
      (!reads_keys(params.settings) || (kv.is_paged() && context.device.type == DeviceType::kCpu));
  check_tensor(kv.k, "k", holds_codes ? kv.k.dtype : q.dtype, kv.is_paged() ? 4 : 3, context);
  check_argument(kv.head_dim() == q.shape[2], "k must have the head_dim of q, {}, got {}",
                 q.shape[2], kv.head_dim());
  check_argument(kv.num_kv_heads() > 0 && q.shape[1] % kv.num_kv_heads() == 0,
                 "num_q_heads must be a multiple of num_kv_heads, got {} and {}", q.shape[1],
                 kv.num_kv_heads());
  if (kv.is_paged()) {
    check_argument(kv.page_size == params.settings.block_size && kv.k.shape[2] == kv.page_size,
                   "page_size must be block_size {}, got {} with k {}", params.settings.block_size,
                   kv.page_size, kv.k.describe());
    check_argument(kv.page_table != nullptr || params.batch.batch_size == 0,
                   "paged K/V must have a page_table");
  } else {
    check_argument(kv.kv_offsets != nullptr || params.batch.batch_size == 0,
                   "contiguous K/V must have kv_offsets");
  }
}

// The batch's numbers, which only the CPU can read here.
void check_batch(const SelectorParams& params) {
  const RaggedBatch& batch = params.batch;
  const int64_t block_size = params.settings.block_size;
  check_argument(batch.q_offsets[0] == 0, "q_offsets must start at 0, got {}", batch.q_offsets[0]);
  for (int64_t s = 0; s < batch.batch_size; ++s) {
    const int64_t kv_len = batch.kv_lens[s];
    check_argument(batch.q_offsets[s + 1] >= batch.q_offsets[s],
                   "q_offsets must ascend, got {} after {}", batch.q_offsets[s + 1],
                   batch.q_offsets[s]);
    const int64_t q_len = batch.q_offsets[s + 1] - batch.q_offsets[s];
    check_argument(kv_len >= q_len, "kv_lens[{}] must be at least q_len {}, got {}", s, q_len,
                   kv_len);
    check_argument(kv_len / block_size < std::numeric_limits<int32_t>::max(),
                   "kv_lens[{}] must have fewer than 2^31 blocks, got {} keys", s, kv_len);
    const int64_t first_position = kv_len - q_len;
    check_argument(
        first_position % block_size == 0 || q_len == 0 ||
            first_position / block_size == (kv_len - 1) / block_size,
        "queries of sequence {} must start at a multiple of block_size {} or stay in one block, "
        "got positions {} ... {}",
        s, block_size, first_position, kv_len - 1);
    const int64_t num_blocks = ceil_div(kv_len, block_size);
    if (params.kv.is_paged()) {
      check_argument(num_blocks <= params.kv.page_table_stride,
                     "page_table must name {} pages of sequence {}, has room for {}", num_blocks, s,
                     params.kv.page_table_stride);
      for (int64_t b = 0; b < num_blocks; ++b) {
        const int32_t page = params.kv.page_table[s * params.kv.page_table_stride + b];
        check_argument(page >= 0 && page < params.kv.num_pages(),
                       "page_table[{}][{}] must be in 0 ... {}, got {}", s, b,
                       params.kv.num_pages() - 1, page);
      }
    } else {
      const int64_t first = params.kv.kv_offsets[s];
      check_argument(first >= 0 && first <= params.kv.k.shape[0] - kv_len,
                     "keys of sequence {} must lie in k, got {} + {} in {}", s, first, kv_len,
                     params.kv.k.describe());
    }
  }
  check_argument(batch.q_offsets[batch.batch_size] == params.q.shape[0],
                 "q_offsets must end at the rows of q, {}, got {}", params.q.shape[0],
                 batch.q_offsets[batch.batch_size]);
}

void check_stats(const SelectorParams& params, const Context& context) {
  const BlockStatsView& stats = params.stats;
  const SelectorSettings& settings = params.settings;
  const int64_t num_kv_heads = params.kv.num_kv_heads(), head_dim = params.kv.head_dim();
  check_argument(stats.block_size == settings.block_size, "stats must be of block_size {}, got {}",
                 settings.block_size, stats.block_size);
  check_tensor(stats.centroid, "stats.centroid", params.q.dtype, 3, context);
  const int64_t entries = stats.centroid.shape[0];
  check_shape(stats.centroid, "stats.centroid", {entries, num_kv_heads, head_dim});
  check_tensor(stats.radius, "stats.radius", DType::kF32, 2, context);
  check_shape(stats.radius, "stats.radius", {entries, num_kv_heads});
  if (reads_witnesses(settings.method)) {
    check_argument(stats.num_witnesses == settings.num_witnesses,
                   "stats must hold num_witnesses {}, got {}", settings.num_witnesses,
                   stats.num_witnesses);
    check_tensor(stats.witness, "stats.witness", params.q.dtype, 3, context);
    check_shape(stats.witness, "stats.witness",
                {entries, num_kv_heads * settings.num_witnesses, head_dim});
    check_tensor(stats.rest_mean, "stats.rest_mean", params.q.dtype, 3, context);
    check_shape(stats.rest_mean, "stats.rest_mean", {entries, num_kv_heads, head_dim});
  }
  check_tensor(stats.non_finite, "stats.non_finite", DType::kI32, 2, context);
  check_shape(stats.non_finite, "stats.non_finite", {entries, num_kv_heads});
  if (params.kv.is_paged()) {
    check_argument(entries >= params.kv.num_pages(), "stats must cover {} pages, got {}",
                   params.kv.num_pages(), entries);
  }
}

void check_block_offsets(const SelectorParams& params) {
  if (params.kv.is_paged()) return;
  check_argument(params.block_offsets != nullptr || params.batch.batch_size == 0,
                 "block_offsets must be given with contiguous K/V");
  const int64_t entries = params.stats.centroid.shape[0];
  for (int64_t s = 0; s < params.batch.batch_size; ++s) {
    const int64_t num_blocks = params.batch.kv_lens[s] / params.settings.block_size;
    const int64_t first = params.block_offsets[s];
    check_argument(first >= 0 && first <= entries - num_blocks,
                   "statistics of sequence {} must lie in stats, got {} + {} of {}", s, first,
                   num_blocks, entries);
  }
}

// K of the batch's pages out of codes, as numbers of q's type in pages of the same numbers.
Tensor widen_keys(const SelectorParams& params, const Context& context) {
  const KvView& kv = params.kv;
  const int64_t row_bytes = kv.head_dim() * dtype_bytes(params.q.dtype);
  Tensor keys(params.q.dtype, {kv.num_pages(), kv.num_kv_heads(), kv.page_size, kv.head_dim()});
  for (int64_t s = 0; s < params.batch.batch_size; ++s) {
    const int32_t* const pages = kv.page_table + s * kv.page_table_stride;
    const int64_t num_blocks = params.batch.kv_lens[s] / kv.page_size;
    parallel_for(context, num_blocks * kv.num_kv_heads(), [&](int64_t task, int32_t) {
      const int64_t page = pages[task / kv.num_kv_heads()], head = task % kv.num_kv_heads();
      std::byte* const to =
          keys.as<std::byte>() + (page * kv.num_kv_heads() + head) * kv.page_size * row_bytes;
      read_code_keys(kv, page, head, 0, kv.page_size, {params.q.dtype, to, row_bytes});
    });
  }
  return keys;
}

}  // namespace

std::span<const SelectorBackend* const> selector_backends() {
  static const std::vector<const SelectorBackend*> kBackends = [] {
    std::vector<const SelectorBackend*> backends = {&fixed_selector()};
    for (const SelectorBackend* backend : cpu_selectors()) backends.push_back(backend);
    backends.push_back(&lab_selector());
#ifdef FOVEA_WITH_CUDA
    backends.push_back(&cuda_selector());
#endif
    backends.push_back(&reference_selector());
    return backends;
  }();
  return kBackends;
}

void check_selector_params(const SelectorParams& params, const Context& context) {
  check_argument(params.settings.block_size > 0, "block_size must be in 16 ... 4096, got {}",
                 params.settings.block_size);  // the rules below divide by it
  check_q_and_kv(params, context);
  check_argument(params.batch.batch_size >= 0, "batch_size must not be negative, got {}",
                 params.batch.batch_size);
  check_argument(params.batch.q_offsets != nullptr, "q_offsets must be given");
  check_argument(params.batch.kv_lens != nullptr || params.batch.batch_size == 0,
                 "kv_lens must be given");
  const bool readable = context.device.type == DeviceType::kCpu;
  if (readable) check_batch(params);
  if (scores(params.settings.method)) {
    check_stats(params, context);
    if (readable) check_block_offsets(params);
  }
  check_argument(std::isfinite(params.softmax_scale) && params.softmax_scale >= 0,
                 "softmax_scale must be finite and not negative, got {}", params.softmax_scale);
  if (params.prompt_lens != nullptr && readable) {
    for (int64_t s = 0; s < params.batch.batch_size; ++s) {
      check_argument(params.prompt_lens[s] >= params.batch.kv_lens[s],
                     "prompt_lens[{}] must be at least kv_lens {}, got {}", s,
                     params.batch.kv_lens[s], params.prompt_lens[s]);
    }
  }
  check_selector_settings(params.settings);
}

void select_blocks(const SelectorParams& params, const Context& context,
                   BlockSelection& selection) {
  check_selector_params(params, context);
  if (params.kv.holds_codes() && context.device.type == DeviceType::kCpu &&
      reads_keys(params.settings)) {
    const Tensor keys = widen_keys(params, context);
    SelectorParams widened = params;
    widened.kv.k = keys.view();
    select_blocks(widened, context, selection);
    return;
  }
  const char* pinned = std::getenv("FOVEA_SELECTOR_BACKEND");
  const bool any = pinned == nullptr || *pinned == '\0';
  std::string reasons;
  for (const SelectorBackend* backend : selector_backends()) {
    std::string reason = any || backend->name() == pinned
                             ? backend->why_unsupported(params, context)
                             : "FOVEA_SELECTOR_BACKEND names another";
    if (reason.empty()) {
      backend->run(params, context, selection);
      return;
    }
    reasons += fmt::format("{}{}: {}", reasons.empty() ? "" : "; ", backend->name(), reason);
  }
  fail(ErrorCode::kUnsupported, "no selector backend can run {} on {}: {}",
       selector_method_name(params.settings.method), params.q.describe(), reasons);
}

std::vector<double> density_per_head(const BlockSelection& selection) {
  std::vector<double> densities;
  for (int64_t h = 0; h < selection.num_q_heads; ++h) {
    int64_t kept = 0;
    for (int64_t i = 0; i < selection.num_q_blocks; ++i) {
      kept += selection.len[static_cast<size_t>(h * selection.num_q_blocks + i)];
    }
    // Every head has the same causal pairs.
    densities.push_back(kept_share(kept * selection.num_q_heads, selection.causal_pairs));
  }
  return densities;
}

}  // namespace fovea
