#include "fovea/attention/cuda/quantize_kv_cuda.h"

#include "fovea/attention/cuda/quantize_launch.h"
#include "fovea/base/checked_math.h"
#include "fovea/base/error.h"
#include "fovea/tensor/cuda/device.h"

namespace fovea {
namespace {

bool is_gpu_type(DType dtype) { return dtype == DType::kBF16 || dtype == DType::kF16; }

/// Kernels read and write 8 elements at a time.
void check_eights(const TensorView& view, const char* name) {
  for (int32_t i = 0; i + 1 < view.rank; ++i) {
    const int64_t stride = view.stride[static_cast<size_t>(i)];
    if (stride % 8 != 0) {
      fail(ErrorCode::kUnsupported, "strides of {} must be multiples of 8 elements, got {}", name,
           stride);
    }
  }
  if (view.shape[static_cast<size_t>(view.rank - 1)] % 8 != 0) {
    fail(ErrorCode::kUnsupported, "rows of {} must be multiples of 8 elements, got {}", name,
         view.describe());
  }
}

cuda::QuantizeSide side_of(const TensorView& from, const TensorView& to, const TensorView& scale,
                           bool is_paged) {
  cuda::QuantizeSide side;
  side.from = from.data;
  side.from_page_stride = is_paged ? from.stride[0] : 0;
  side.from_head_stride = from.stride[1];
  side.from_row_stride = from.stride[is_paged ? 2 : 0];
  side.to = to.as<uint8_t>();
  for (size_t i = 0; i < 3; ++i) side.to_strides[i] = to.stride[i];
  side.scale = scale.as<float>();
  side.scale_page_stride = scale.rank == 2 ? scale.stride[0] : 0;
  return side;
}

}  // namespace

void quantize_kv_cuda(const KvView& from, const KvView& to, int64_t seq, int64_t first_page,
                      int64_t kv_len, const Context& context) {
  check_quantize_kv(from, to, seq, first_page, kv_len, is_gpu_type(from.k.dtype));
  check_eights(from.k, "k");
  check_eights(from.v, "v");
  check_eights(to.k, "quantized k");
  check_eights(to.v, "quantized v");
  const int64_t num_pages = ceil_div(kv_len, to.page_size) - first_page;
  if (num_pages <= 0) return;
  cuda::QuantizeKvParams params;
  params.k = side_of(from.k, to.k, to.k_scale, from.is_paged());
  params.v = side_of(from.v, to.v, to.v_scale, from.is_paged());
  if (from.is_paged()) {
    params.from_page_table = from.page_table + seq * from.page_table_stride;
    params.from_page_size = static_cast<int32_t>(from.page_size);
  } else {
    params.from_offset = from.kv_offsets + seq;
  }
  params.to_page_table = to.page_table + seq * to.page_table_stride;
  params.page_size = static_cast<int32_t>(to.page_size);
  params.head_dim = static_cast<int32_t>(to.head_dim());
  params.first_page = static_cast<int32_t>(first_page);
  params.kv_len = static_cast<int32_t>(kv_len);
  const cuda::DeviceScope scope(context);
  cuda::launch_quantize_kv(params, from.k.dtype == DType::kBF16, static_cast<int>(num_pages),
                           static_cast<int>(to.num_kv_heads()), cuda::stream_of(context));
}

void append_kv_cuda(const AppendKvTask& task, const Context& context) {
  check_argument(is_gpu_type(task.k.dtype), "rows must be bf16 or f16, got {}", task.k.describe());
  check_eights(task.k, "k");
  check_eights(task.v, "v");
  check_eights(task.to.k, "pages of k");
  check_eights(task.to.v, "pages of v");
  cuda::QuantizeKvParams params;
  params.k = side_of(task.k, task.to.k, task.to.k_scale, false);
  params.v = side_of(task.v, task.to.v, task.to.v_scale, false);
  params.position = task.position;
  params.to_page_table = task.to.page_table;
  params.page_size = static_cast<int32_t>(task.to.page_size);
  params.head_dim = static_cast<int32_t>(task.to.head_dim());
  params.kv_len = static_cast<int32_t>(task.k.shape[0]);
  params.only_rows_are_new = task.only_rows_are_new;
  const cuda::DeviceScope scope(context);
  cuda::launch_append_kv(params, task.k.dtype == DType::kBF16,
                         static_cast<int>(task.to.num_kv_heads()), cuda::stream_of(context));
}

void quantize_q_cuda(const TensorView& from, const TensorView& scale, const TensorView& to,
                     const Context& context) {
  check_quantize_q(from, scale, to, is_gpu_type(from.dtype));
  check_eights(from, "q");
  check_eights(to, "quantized q");
  if (from.num_elements() == 0) return;
  cuda::QuantizeQParams params;
  params.from = from.data;
  params.to = to.as<uint8_t>();
  params.scale = scale.as<const float>();
  for (size_t i = 0; i < 2; ++i) {
    params.from_strides[i] = from.stride[i];
    params.to_strides[i] = to.stride[i];
  }
  params.rows = from.shape[0];
  params.heads = static_cast<int32_t>(from.shape[1]);
  params.head_dim = static_cast<int32_t>(from.shape[2]);
  const cuda::DeviceScope scope(context);
  cuda::launch_quantize_q(params, from.dtype == DType::kBF16, cuda::stream_of(context));
}

}  // namespace fovea
