// A C face of the GPU kernels for benchmarks/peers/torch_sdpa.py, so that rivals run in one loop.
#include <cstdint>
#include <string>

#include "fovea/attention/cuda/cuda_backend.h"

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
  int64_t batch_size, total_q, total_kv, num_q_heads, num_kv_heads, head_dim;
  int64_t q_row_stride, q_head_stride, kv_row_stride, kv_head_stride;
  int64_t page_size, num_pages, max_pages;
  int64_t num_q_blocks, num_list_blocks, block_size;
  int64_t window_left, is_causal, is_f16;
};

/// Null, or why the call failed.
const char* fovea_attend(const FoveaAttentionCall* call) {
  using fovea::TensorView;
  try {
    const fovea::Context context{{fovea::DeviceType::kCuda, 0}, 0, call->stream};
    const fovea::DType dtype = call->is_f16 ? fovea::DType::kF16 : fovea::DType::kBF16;
    const auto rows = [&](void* data, int64_t count, int64_t heads, int64_t row_stride,
                          int64_t head_stride) {
      TensorView view =
          fovea::make_view(data, dtype, {count, heads, call->head_dim}, context.device);
      view.stride[0] = row_stride;
      view.stride[1] = head_stride;
      return view;
    };
    const auto kv = [&](void* data) {
      if (call->page_size == 0) {
        return rows(data, call->total_kv, call->num_kv_heads, call->kv_row_stride,
                    call->kv_head_stride);
      }
      return fovea::make_view(
          data, dtype, {call->num_pages, call->num_kv_heads, call->page_size, call->head_dim},
          context.device);
    };
    fovea::AttentionParams params;
    params.q =
        rows(call->q, call->total_q, call->num_q_heads, call->q_row_stride, call->q_head_stride);
    params.out = params.q;
    params.out.data = call->out;
    params.lse = fovea::make_view(call->lse, fovea::DType::kF32, {call->num_q_heads, call->total_q},
                                  context.device);
    params.kv = {kv(call->k),      kv(call->v),     call->kv_offsets,
                 call->page_table, call->max_pages, call->page_size};
    params.batch = {call->batch_size, call->q_offsets, call->kv_lens};
    params.causal = call->is_causal != 0;
    params.window_left = call->window_left;
    fovea::BlockSelectionView selection{
        call->block_size, call->num_q_heads, call->num_q_blocks, call->q_block_offsets,
        call->list_begin, call->list_len,    call->list_blocks,  call->num_list_blocks};
    if (call->q_block_offsets != nullptr) params.selection = &selection;
    fovea::attend(params, context);
    return nullptr;
  } catch (const std::exception& error) {
    last_error = error.what();
    return last_error.c_str();
  }
}

}  // extern "C"
