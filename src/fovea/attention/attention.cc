#include "fovea/attention/attention.h"

#include <cmath>
#include <cstdlib>
#include <limits>
#include <vector>

#include "fovea/attention/append_kv.h"
#include "fovea/attention/cpu/cpu_backends.h"
#include "fovea/attention/quantize_kv.h"
#include "fovea/attention/reference/reference_attention.h"
#include "fovea/base/error.h"

#ifdef FOVEA_WITH_CUDA
#include "fovea/attention/cuda/cuda_backend.h"
#endif

namespace fovea {
namespace {

bool is_float(DType dtype) { return dtype != DType::kI32 && dtype != DType::kI64; }

void check_view(const TensorView& view, const char* name, int32_t rank, const Context& context) {
  check_argument(view.rank == rank, "{} must have rank {}, got {}", name, rank, view.describe());
  check_argument(view.device == context.device, "{} must be on the context's device", name);
  check_argument(view.data != nullptr || view.num_elements() == 0, "{} has no data: {}", name,
                 view.describe());
  check_argument(view.stride[static_cast<size_t>(rank - 1)] == 1,
                 "the last stride of {} must be 1, got {}", name,
                 view.stride[static_cast<size_t>(rank - 1)]);
}

void check_q(const AttentionParams& params, const Context& context) {
  check_view(params.q, "q", 3, context);
  check_argument(is_float(params.q.dtype), "q must be of a float type, got {}",
                 params.q.describe());
  check_argument(params.num_q_heads() > 0 && params.head_dim() > 0,
                 "q needs at least one head of at least one element, got {}", params.q.describe());
}

void check_kv(const AttentionParams& params, const Context& context) {
  const KvView& kv = params.kv;
  check_argument(kv.page_size >= 0, "page_size must not be negative, got {}", kv.page_size);
  const int32_t rank = kv.is_paged() ? 4 : 3;
  check_view(kv.k, "k", rank, context);
  check_view(kv.v, "v", rank, context);
  const bool may_widen = context.device.type == DeviceType::kCpu
                             ? kv.holds_codes()
                             : kv.k.dtype == DType::kF8E4M3 && params.q.dtype == DType::kBF16;
  check_argument((kv.k.dtype == params.q.dtype || may_widen) && kv.v.dtype == kv.k.dtype,
                 "k and v must have the type of q ({}), or be f8e4m3 under f32 (on the CPU) or "
                 "bf16, or on the CPU i8, got {} and {}",
                 dtype_name(params.q.dtype), dtype_name(kv.k.dtype), dtype_name(kv.v.dtype));
  if (kv.holds_codes()) {
    check_code_pages(kv);
  } else {
    check_argument(kv.k.shape == kv.v.shape, "k and v must have the same shape, got {} and {}",
                   kv.k.describe(), kv.v.describe());
  }
  check_argument(kv.head_dim() == params.head_dim(), "k and v must have head_dim {}, got {}",
                 params.head_dim(), kv.head_dim());
  check_argument(kv.num_kv_heads() > 0 && params.num_q_heads() % kv.num_kv_heads() == 0,
                 "num_q_heads ({}) must be a multiple of num_kv_heads ({})", params.num_q_heads(),
                 kv.num_kv_heads());
  check_argument(!kv.is_paged() || kv.k.shape[2] == kv.page_size,
                 "page_size is {} but k has pages of {}", kv.page_size, kv.k.shape[2]);
  for (const TensorView* scale : {&kv.k_scale, &kv.v_scale}) {
    check_argument(scale->empty() || (kv.holds_codes() && scale->device == context.device),
                   "k_scale and v_scale go with codes on the context's device, k is {}",
                   kv.k.describe());
  }
}

// The sequence's share of what check_batch checks about K/V.
void check_sequence_kv(const KvView& kv, int64_t s, int64_t kv_len) {
  if (!kv.is_paged()) {
    const int64_t offset = kv.kv_offsets[s];
    check_argument(offset >= 0 && offset <= kv.k.shape[0] - kv_len,
                   "sequence {}: keys [{}, {} + {}) lie outside k's {} rows", s, offset, offset,
                   kv_len, kv.k.shape[0]);
    return;
  }
  const int64_t num_pages = ceil_div(kv_len, kv.page_size);
  check_argument(num_pages <= kv.page_table_stride,
                 "sequence {}: kv_len {} needs {} pages, the page table holds {}", s, kv_len,
                 num_pages, kv.page_table_stride);
  for (int64_t i = 0; i < num_pages; ++i) {
    const int64_t page = kv.page_table[s * kv.page_table_stride + i];
    check_argument(page >= 0 && page < kv.num_pages(),
                   "sequence {}: page table entry {} is {}, there are {} pages", s, i, page,
                   kv.num_pages());
  }
}

// Lengths and tables can be read only where they are: a kernel's own device checks the rest.
void check_batch(const AttentionParams& params, const Context& context) {
  const RaggedBatch& batch = params.batch;
  check_argument(batch.batch_size >= 0, "batch_size must not be negative, got {}",
                 batch.batch_size);
  if (batch.batch_size == 0) {
    check_argument(params.q.shape[0] == 0, "batch_size is 0 but q has {} rows", params.q.shape[0]);
    return;
  }
  check_argument(batch.q_offsets != nullptr && batch.kv_lens != nullptr,
                 "batch needs q_offsets and kv_lens");
  check_argument((params.kv.is_paged() ? static_cast<const void*>(params.kv.page_table)
                                       : params.kv.kv_offsets) != nullptr,
                 "{} k and v need {}", params.kv.is_paged() ? "paged" : "contiguous",
                 params.kv.is_paged() ? "page_table" : "kv_offsets");
  if (context.device.type != DeviceType::kCpu) return;
  check_argument(batch.q_offsets[0] == 0, "q_offsets must start at 0, got {}", batch.q_offsets[0]);
  for (int64_t s = 0; s < batch.batch_size; ++s) {
    const int64_t kv_len = batch.kv_lens[s];
    check_argument(batch.q_offsets[s + 1] >= batch.q_offsets[s],
                   "q_offsets must ascend, entry {} is {} after {}", s + 1, batch.q_offsets[s + 1],
                   batch.q_offsets[s]);
    check_argument(kv_len >= 0 && kv_len <= std::numeric_limits<int32_t>::max(),
                   "kv_lens[{}] must be in [0, 2^31), got {}", s, kv_len);
    check_sequence_kv(params.kv, s, kv_len);
  }
  check_argument(batch.q_offsets[batch.batch_size] == params.q.shape[0],
                 "q_offsets must end at q's {} rows, got {}", params.q.shape[0],
                 batch.q_offsets[batch.batch_size]);
}

void check_outputs_and_options(const AttentionParams& params, const Context& context) {
  check_view(params.out, "out", 3, context);
  const bool is_f8 = params.q.dtype == DType::kF8E4M3;
  check_argument(
      params.out.shape == params.q.shape && (is_f8 || params.out.dtype == params.q.dtype),
      "out must be like q ({}), got {}", params.q.describe(), params.out.describe());
  check_argument(!is_f8 || params.out.dtype == DType::kBF16 || params.out.dtype == DType::kF32,
                 "out of f8e4m3 attention must be bf16 or f32, got {}", params.out.describe());
  if (!params.lse.empty()) {
    check_view(params.lse, "lse", 2, context);
    check_argument(params.lse.dtype == DType::kF32 && params.lse.shape[0] == params.num_q_heads() &&
                       params.lse.shape[1] == params.q.shape[0],
                   "lse must be f32[{}, {}], got {}", params.num_q_heads(), params.q.shape[0],
                   params.lse.describe());
  }
  if (!params.sinks.empty()) {
    check_view(params.sinks, "sinks", 1, context);
    check_argument(
        params.sinks.dtype == DType::kF32 && params.sinks.shape[0] == params.num_q_heads(),
        "sinks must be f32[{}], got {}", params.num_q_heads(), params.sinks.describe());
  }
  check_argument(std::isfinite(params.softmax_scale) && params.softmax_scale >= 0,
                 "softmax_scale must be finite and not negative, got {}", params.softmax_scale);
  check_argument(params.window_left >= -1, "window_left must be -1 or more, got {}",
                 params.window_left);
  check_argument(params.value_share > 0 && params.value_share <= 1,
                 "value_share must be in (0, 1], got {}", params.value_share);
}

void check_list(const BlockSelectionView& selection, int64_t list, int64_t end_block) {
  const int64_t begin = selection.begin[list];
  const int64_t len = selection.len[list];
  check_argument(
      begin >= 0 && len >= 0 && len <= selection.num_blocks && begin <= selection.num_blocks - len,
      "selection list {}: [{}, {} + {}) lies outside the pool of {} blocks", list, begin, begin,
      len, selection.num_blocks);
  int64_t previous = -1;
  for (int64_t i = begin; i < begin + len; ++i) {
    const int64_t block = selection.blocks[i];
    check_argument(block > previous && block < end_block,
                   "selection list {}: block {} after {} must ascend and stay under {}", list,
                   block, previous, end_block);
    previous = block;
  }
}

void check_selection(const AttentionParams& params, const Context& context) {
  if (params.selection == nullptr) return;
  const BlockSelectionView& selection = *params.selection;
  check_argument(selection.block_size > 0, "selection block_size must be positive, got {}",
                 selection.block_size);
  check_argument(selection.num_q_heads == params.num_q_heads(),
                 "selection is for {} q heads, q has {}", selection.num_q_heads,
                 params.num_q_heads());
  check_argument(selection.num_q_blocks >= 0 && selection.num_blocks >= 0,
                 "selection sizes must not be negative, got {} q blocks, {} blocks",
                 selection.num_q_blocks, selection.num_blocks);
  if (context.device.type != DeviceType::kCpu || params.batch.batch_size == 0) return;
  check_argument(selection.q_block_offsets != nullptr &&
                     ((selection.begin != nullptr && selection.len != nullptr) ||
                      selection.num_q_blocks == 0) &&
                     (selection.blocks != nullptr || selection.num_blocks == 0),
                 "selection lacks q_block_offsets, begin, len or blocks");
  for (int64_t s = 0; s < params.batch.batch_size; ++s) {
    const int64_t q_len = params.batch.q_offsets[s + 1] - params.batch.q_offsets[s];
    const int64_t kv_len = params.batch.kv_lens[s];
    if (q_len == 0) continue;
    check_argument(q_len <= kv_len, "sequence {}: a selection needs q_len ({}) <= kv_len ({})", s,
                   q_len, kv_len);
    const int64_t first = first_q_block(q_len, kv_len, selection.block_size);
    const int64_t end = end_q_block(kv_len, selection.block_size);
    const int64_t offset = selection.q_block_offsets[s];
    check_argument(offset >= 0 && selection.q_block_offsets[s + 1] - offset >= end - first &&
                       selection.q_block_offsets[s + 1] <= selection.num_q_blocks,
                   "sequence {}: q_block_offsets [{}, {}) must hold {} blocks within {}", s, offset,
                   selection.q_block_offsets[s + 1], end - first, selection.num_q_blocks);
    for (int64_t h = 0; h < selection.num_q_heads; ++h) {
      for (int64_t i = first; i < end; ++i) {
        check_list(selection, selection.list(h, s, i - first), params.causal ? i + 1 : end);
      }
    }
  }
}

void check_periphery(const AttentionParams& params, const Context& context) {
  const Periphery& periphery = params.periphery;
  if (!periphery.enabled()) return;
  check_view(periphery.k_mean, "k_mean", 3, context);
  check_view(periphery.v_mean, "v_mean", 3, context);
  const DType mean_dtype = params.q.dtype == DType::kF8E4M3 ? DType::kBF16 : params.q.dtype;
  check_argument(periphery.k_mean.dtype == mean_dtype && periphery.v_mean.dtype == mean_dtype,
                 "k_mean and v_mean under q of {} must be {}", dtype_name(params.q.dtype),
                 dtype_name(mean_dtype));
  check_argument(periphery.k_mean.shape == periphery.v_mean.shape &&
                     periphery.k_mean.shape[1] == params.kv.num_kv_heads() &&
                     periphery.k_mean.shape[2] == params.head_dim(),
                 "k_mean and v_mean must be [pages, {}, {}], got {} and {}",
                 params.kv.num_kv_heads(), params.head_dim(), periphery.k_mean.describe(),
                 periphery.v_mean.describe());
  check_argument(params.selection != nullptr, "periphery needs a selection");
  check_argument(params.causal, "periphery needs causal attention");
  const int64_t block_size = params.selection->block_size;
  if (params.kv.is_paged()) {
    check_argument(block_size == params.kv.page_size,
                   "periphery needs page_size ({}) == block_size ({})", params.kv.page_size,
                   block_size);
    check_argument(periphery.k_mean.shape[0] == params.kv.num_pages(),
                   "k_mean has {} pages, k has {}", periphery.k_mean.shape[0],
                   params.kv.num_pages());
    return;
  }
  if (params.batch.batch_size == 0) return;
  check_argument(periphery.block_offsets != nullptr, "periphery of contiguous k needs offsets");
  if (context.device.type != DeviceType::kCpu) return;
  for (int64_t s = 0; s < params.batch.batch_size; ++s) {
    const int64_t num_complete = params.batch.kv_lens[s] / block_size;
    const int64_t offset = periphery.block_offsets[s];
    check_argument(offset >= 0 && offset <= periphery.k_mean.shape[0] - num_complete,
                   "sequence {}: means [{}, {} + {}) lie outside k_mean's {} rows", s, offset,
                   offset, num_complete, periphery.k_mean.shape[0]);
  }
}

void check_q_scale(const AttentionParams& params, const Context& context) {
  if (params.q_scale.empty()) return;
  check_view(params.q_scale, "q_scale", 1, context);
  check_argument(params.q.dtype == DType::kF8E4M3, "q_scale goes with f8e4m3, q is {}",
                 params.q.describe());
  check_argument(
      params.q_scale.dtype == DType::kF32 && params.q_scale.shape[0] == params.num_q_heads(),
      "q_scale must be f32[{}], got {}", params.num_q_heads(), params.q_scale.describe());
}

}  // namespace

float AttentionParams::scale() const {
  return softmax_scale > 0 ? softmax_scale
                           : static_cast<float>(1.0 / std::sqrt(static_cast<double>(head_dim())));
}

void check_attention_params(const AttentionParams& params, const Context& context) {
  check_q(params, context);
  check_kv(params, context);
  check_batch(params, context);
  check_outputs_and_options(params, context);
  check_selection(params, context);
  check_periphery(params, context);
  check_q_scale(params, context);
}

std::span<const AttentionBackend* const> attention_backends() {
  static const std::vector<const AttentionBackend*> backends = [] {
    const auto cpu = cpu_attention_backends();
    std::vector<const AttentionBackend*> all(cpu.begin(), cpu.end());
#ifdef FOVEA_WITH_CUDA
    all.push_back(&cuda_attention_backend());
#endif
    all.push_back(&reference_attention_backend());
    return all;
  }();
  return backends;
}

const AttentionBackend& choose_attention_backend(const AttentionParams& params,
                                                 const Context& context) {
  const char* variable = std::getenv("FOVEA_ATTENTION_BACKEND");
  const std::string_view pinned = variable != nullptr ? variable : "";
  std::string reasons;
  bool is_known = pinned.empty();
  for (const AttentionBackend* backend : attention_backends()) {
    if (!pinned.empty() && backend->name() != pinned) {
      reasons += fmt::format("; {}: not what FOVEA_ATTENTION_BACKEND names", backend->name());
      continue;
    }
    is_known = true;
    const std::string reason = backend->why_unsupported(params, context);
    if (reason.empty()) return *backend;
    reasons += fmt::format("; {}: {}", backend->name(), reason);
  }
  if (!is_known) {
    fail(ErrorCode::kUnsupported, "FOVEA_ATTENTION_BACKEND names no backend: '{}'{}", pinned,
         reasons);
  }
  fail(ErrorCode::kUnsupported, "no attention backend can compute this{}", reasons);
}

void attend(const AttentionParams& params, const Context& context) {
  check_attention_params(params, context);
  const AttentionBackend& backend = choose_attention_backend(params, context);
  if (params.append != nullptr && !backend.appends(params, context)) {
    append_kv(*params.append, context);
  }
  backend.run(params, context);
}

}  // namespace fovea
