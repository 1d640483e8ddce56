// A C face of the GPU kernels for benchmarks/peers/torch_sdpa.py, so that rivals run in one loop.
#include <cstdint>
#include <memory>
#include <string>

#include "fovea/attention/cuda/cuda_backend.h"
#include "fovea/attention/cuda/quantize_kv_cuda.h"
#include "fovea/selector/cuda/block_stats_cuda.h"
#include "fovea/selector/cuda/cuda_selector.h"
#include "fovea/tensor/cuda/device.h"

namespace {

thread_local std::string last_error;

}  // namespace

extern "C" {

/// One sequence; pointers are device memory, strides are in elements. Mirrored in torch_sdpa.py.
struct FoveaAttentionCall {
  void* q;  // [q_len, num_q_heads, head_dim]
  void* k;  // [kv_len, num_kv_heads, head_dim], or pages
  void* v;
  void* out;
  float* lse;
  void* stream;
  const int64_t* q_offsets;
  const int64_t* kv_lens;
  const int64_t* kv_offsets;
  const int32_t* page_table;
  const int64_t* q_block_offsets;  // null: dense
  const int64_t* list_begin;
  const int32_t* list_len;
  const int32_t* list_blocks;
  float* q_scale;  // f8e4m3: [num_q_heads]; null: 1
  float* k_scale;  // f8e4m3: [num_pages, num_kv_heads]
  float* v_scale;
  int64_t batch_size, total_q, total_kv, num_q_heads, num_kv_heads, head_dim;
  int64_t q_row_stride, q_head_stride, kv_row_stride, kv_head_stride;
  int64_t page_size, num_pages, max_pages;
  int64_t num_q_blocks, num_list_blocks, block_size;
  int64_t window_left, is_causal;
  int64_t dtype;  // 0: bf16, 1: f16, 2: f8e4m3 with results in bf16
};

/// A call with statistics and selection; block_size 128, contiguous K/V.
struct FoveaSparseCall {
  FoveaAttentionCall attention;
  void* centroid;  // [blocks, num_kv_heads, head_dim]
  void* v_mean;
  void* witness;  // [blocks, num_kv_heads * num_witnesses, head_dim]
  void* rest_mean;
  float* radius;  // [blocks, num_kv_heads]
  int32_t* non_finite;
  const int64_t* block_offsets;
  int64_t method, num_witnesses, has_periphery;
  double density, alpha_base, alpha_rescue, pool_density;
};

}  // extern "C"

namespace {

fovea::Context context_of(const FoveaAttentionCall& call) {
  return {{fovea::DeviceType::kCuda, 0}, 0, call.stream};
}

fovea::AttentionParams make_attention(const FoveaAttentionCall& call) {
  using fovea::TensorView;
  const fovea::Device device = context_of(call).device;
  constexpr fovea::DType kTypes[] = {fovea::DType::kBF16, fovea::DType::kF16,
                                     fovea::DType::kF8E4M3};
  const fovea::DType dtype = kTypes[call.dtype];
  const bool is_f8 = dtype == fovea::DType::kF8E4M3;
  const auto rows = [&](void* data, int64_t count, int64_t heads, int64_t row_stride,
                        int64_t head_stride) {
    TensorView view = fovea::make_view(data, dtype, {count, heads, call.head_dim}, device);
    view.stride[0] = row_stride;
    view.stride[1] = head_stride;
    return view;
  };
  const auto kv = [&](void* data, bool is_turned) {
    if (call.page_size == 0) {
      return rows(data, call.total_kv, call.num_kv_heads, call.kv_row_stride, call.kv_head_stride);
    }
    const int64_t rows_of_page = is_turned ? call.head_dim : call.page_size;
    const int64_t columns = is_turned ? call.page_size : call.head_dim;
    return fovea::make_view(data, dtype, {call.num_pages, call.num_kv_heads, rows_of_page, columns},
                            device);
  };
  fovea::AttentionParams params;
  params.q = rows(call.q, call.total_q, call.num_q_heads, call.q_row_stride, call.q_head_stride);
  params.out = params.q;
  params.out.data = call.out;
  if (is_f8) params.out.dtype = fovea::DType::kBF16;
  params.lse =
      fovea::make_view(call.lse, fovea::DType::kF32, {call.num_q_heads, call.total_q}, device);
  params.kv = {kv(call.k, false), kv(call.v, is_f8), call.kv_offsets,
               call.page_table,   call.max_pages,    call.page_size};
  if (is_f8) {
    const auto scale = [&](float* data) {
      return fovea::make_view(data, fovea::DType::kF32, {call.num_pages, call.num_kv_heads},
                              device);
    };
    params.kv.k_scale = scale(call.k_scale);
    params.kv.v_scale = scale(call.v_scale);
    if (call.q_scale != nullptr) {
      params.q_scale =
          fovea::make_view(call.q_scale, fovea::DType::kF32, {call.num_q_heads}, device);
    }
  }
  params.batch = {call.batch_size, call.q_offsets, call.kv_lens};
  params.causal = call.is_causal != 0;
  params.window_left = call.window_left;
  return params;
}

/// One sparse prefill, step by step.
struct Session {
  fovea::Context context;
  fovea::AttentionParams attention;
  fovea::SelectorParams selector;
  std::unique_ptr<fovea::DeviceSelection> selection;

  explicit Session(const FoveaSparseCall& call)
      : context(context_of(call.attention)), attention(make_attention(call.attention)) {
    const FoveaAttentionCall& base = call.attention;
    const int64_t blocks = base.total_kv / 128;
    const auto means = [&](void* data, int64_t rows) {
      return data == nullptr ? fovea::TensorView{}
                             : fovea::make_view(data, fovea::DType::kBF16,
                                                {blocks, rows, base.head_dim}, context.device);
    };
    selector.q = attention.q;
    selector.kv = attention.kv;
    selector.batch = attention.batch;
    selector.stats.block_size = 128;
    selector.stats.centroid = means(call.centroid, base.num_kv_heads);
    selector.stats.v_mean = means(call.v_mean, base.num_kv_heads);
    selector.stats.witness = means(call.witness, base.num_kv_heads * call.num_witnesses);
    selector.stats.rest_mean = means(call.rest_mean, base.num_kv_heads);
    selector.stats.radius = fovea::make_view(call.radius, fovea::DType::kF32,
                                             {blocks, base.num_kv_heads}, context.device);
    selector.stats.non_finite = fovea::make_view(call.non_finite, fovea::DType::kI32,
                                                 {blocks, base.num_kv_heads}, context.device);
    selector.stats.num_witnesses = call.num_witnesses;
    selector.block_offsets = call.block_offsets;
    selector.settings.method = static_cast<fovea::SelectorMethod>(call.method);
    if (call.num_witnesses > 0) selector.settings.num_witnesses = call.num_witnesses;
    selector.settings.density = static_cast<float>(call.density);
    selector.settings.alpha_base = static_cast<float>(call.alpha_base);
    selector.settings.alpha_rescue = static_cast<float>(call.alpha_rescue);
    fovea::check_selector_settings(selector.settings);
    const std::string reason = fovea::cuda_selector().why_unsupported(selector, context);
    if (!reason.empty()) fovea::fail(fovea::ErrorCode::kUnsupported, "{}", reason);
    selection = std::make_unique<fovea::DeviceSelection>(
        fovea::CudaSelector::sizes_for(selector, call.pool_density), context);
    attention.selection = &selection->view();
    if (call.has_periphery != 0) {
      attention.periphery = {selector.stats.centroid, selector.stats.v_mean, call.block_offsets};
    }
  }
};

/// Scratch of calls as the engine gives it: the nodes of a graph that take pool memory would keep
/// its kernels apart. A larger call makes it anew, so that graphs of calls before are no longer
/// valid. Never freed: the driver may be gone by then.
fovea::cuda::ScratchArena& scratch_for(const fovea::Context& context) {
  static auto& arena = *new fovea::cuda::ScratchArena;
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  fovea::cuda::check_cuda(cudaStreamIsCapturing(fovea::cuda::stream_of(context), &status),
                          "asking whether a stream is captured");
  if (status == cudaStreamCaptureStatusNone) arena.fit(context);
  return arena;
}

template <typename Work>
const char* guarded(const Work& work) {
  try {
    work();
    return nullptr;
  } catch (const std::exception& error) {
    last_error = error.what();
    return last_error.c_str();
  }
}

}  // namespace

extern "C" {

// Each returns null, or why it failed.

const char* fovea_attend(const FoveaAttentionCall* call) {
  return guarded([&] {
    fovea::AttentionParams params = make_attention(*call);
    fovea::BlockSelectionView selection{
        call->block_size, call->num_q_heads, call->num_q_blocks, call->q_block_offsets,
        call->list_begin, call->list_len,    call->list_blocks,  call->num_list_blocks};
    if (call->q_block_offsets != nullptr) params.selection = &selection;
    const fovea::Context context = context_of(*call);
    const fovea::cuda::ScratchArena::Use use(scratch_for(context));
    fovea::attend(params, context);
  });
}

/// q, K and V of `from` (bf16 or f16), whose sequences are `kv_len` long, into those of `to`.
const char* fovea_quantize(const FoveaAttentionCall* from, const FoveaAttentionCall* to,
                           int64_t kv_len) {
  return guarded([&] {
    const fovea::AttentionParams source = make_attention(*from);
    const fovea::AttentionParams codes = make_attention(*to);
    const fovea::Context context = context_of(*from);
    fovea::quantize_q_cuda(source.q, codes.q_scale, codes.q, context);
    for (int64_t s = 0; s < source.batch.batch_size; ++s) {
      fovea::quantize_kv_cuda(source.kv, codes.kv, s, 0, kv_len, context);
    }
  });
}

const char* fovea_sparse_create(const FoveaSparseCall* call, void** session) {
  return guarded([&] { *session = new Session(*call); });
}
void fovea_sparse_destroy(void* session) { delete static_cast<Session*>(session); }

const char* fovea_sparse_stats(void* session) {
  return guarded([&] {
    const auto& s = *static_cast<Session*>(session);
    fovea::compute_block_stats_cuda(s.selector.kv, 0, 0, s.selector.stats.centroid.shape[0], 0,
                                    s.selector.stats, s.context);
  });
}
const char* fovea_sparse_select(void* session) {
  return guarded([&] {
    auto& s = *static_cast<Session*>(session);
    fovea::cuda_selector().run(s.selector, s.context, *s.selection);
  });
}
const char* fovea_sparse_attend(void* session) {
  return guarded([&] {
    const auto& s = *static_cast<Session*>(session);
    fovea::attend(s.attention, s.context);
  });
}
/// Attention by the session's lists over the f8e4m3 tensors of `call`.
const char* fovea_sparse_attend_f8(void* session, const FoveaAttentionCall* call) {
  return guarded([&] {
    const auto& s = *static_cast<Session*>(session);
    fovea::AttentionParams params = make_attention(*call);
    params.selection = s.attention.selection;
    fovea::attend(params, s.context);
  });
}
/// Pairs that the lists hold, and bytes of the selection on the GPU. Waits.
const char* fovea_sparse_report(void* session, int64_t* kept, int64_t* bytes) {
  return guarded([&] {
    const auto& s = *static_cast<Session*>(session);
    fovea::BlockSelection selection;
    s.selection->download(selection);
    *kept = selection.kept_pairs;
    *bytes = s.selection->size_bytes();
  });
}

}  // extern "C"
