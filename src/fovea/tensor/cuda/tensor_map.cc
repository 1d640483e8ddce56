#include "fovea/tensor/cuda/tensor_map.h"

#include <cuda_runtime_api.h>

#include <cstdint>

#include "fovea/tensor/cuda/device.h"

namespace fovea::cuda {
namespace {

using EncodeTiled = CUresult (*)(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*,
                                 const cuuint64_t*, const cuuint64_t*, const cuuint32_t*,
                                 const cuuint32_t*, CUtensorMapInterleave, CUtensorMapSwizzle,
                                 CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

/// The driver's function, looked up at run time: linking libcuda would keep a binary from starting
/// where there is no driver.
EncodeTiled find_encode_tiled() {
  constexpr unsigned int kFirstVersion = 12000;
  void* function = nullptr;
  cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
  check_cuda(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, kFirstVersion,
                                              cudaEnableDefault, &result),
             "looking up cuTensorMapEncodeTiled");
  if (result != cudaDriverEntryPointSuccess || function == nullptr) {
    fail(ErrorCode::kDevice, "the driver has no cuTensorMapEncodeTiled: CUDA 12.0 or newer needed");
  }
  return reinterpret_cast<EncodeTiled>(function);
}

}  // namespace

TensorMapShape token_major_shape(const TensorView& view) {
  TensorMapShape shape;
  shape.rows = view.shape[0];
  shape.row_stride = view.stride[0];
  shape.heads = view.shape[1];
  shape.head_stride = view.stride[1];
  shape.columns = view.shape[2];
  return shape;
}

TensorMapShape paged_shape(const TensorView& view) {
  TensorMapShape shape;
  shape.pages = view.shape[0];
  shape.page_stride = view.stride[0];
  shape.heads = view.shape[1];
  shape.head_stride = view.stride[1];
  shape.rows = view.shape[2];
  shape.row_stride = view.stride[2];
  shape.columns = view.shape[3];
  return shape;
}

std::string why_no_tensor_map(const TensorView& view, const char* name) {
  constexpr int64_t kAlignmentBytes = 16;
  constexpr int64_t kMaxStrideBytes = int64_t{1} << 40;
  if (reinterpret_cast<uintptr_t>(view.data) % kAlignmentBytes != 0) {
    return fmt::format("{} must start at a multiple of {} bytes", name, kAlignmentBytes);
  }
  for (int32_t i = 0; i + 1 < view.rank; ++i) {
    const auto axis = static_cast<size_t>(i);
    const int64_t bytes = view.stride[axis] * dtype_bytes(view.dtype);
    if (view.shape[axis] > 1 &&
        (bytes <= 0 || bytes % kAlignmentBytes != 0 || bytes >= kMaxStrideBytes)) {
      return fmt::format("strides of {} must be positive multiples of {} bytes, got {}", name,
                         kAlignmentBytes, bytes);
    }
    if (view.shape[axis] > INT32_MAX) {
      return fmt::format("{} must have fewer than 2^31 entries along a dimension, got {}", name,
                         view.shape[axis]);
    }
  }
  return {};
}

CUtensorMap make_tensor_map(const TensorView& view, const TensorMapShape& shape, int32_t box_rows,
                            int32_t row_bytes) {
  static const EncodeTiled encode = find_encode_tiled();
  const auto element = static_cast<cuuint64_t>(dtype_bytes(view.dtype));
  const CUtensorMapDataType type = view.dtype == DType::kF8E4M3 ? CU_TENSOR_MAP_DATA_TYPE_UINT8
                                   : view.dtype == DType::kF16  ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16
                                                                : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
  // A dimension of size 1 may carry any stride; the driver still wants a valid one.
  const auto stride_bytes = [&](int64_t size, int64_t stride) {
    return size > 1 ? static_cast<cuuint64_t>(stride) * element : cuuint64_t{16};
  };
  const cuuint64_t sizes[4] = {
      static_cast<cuuint64_t>(shape.columns), static_cast<cuuint64_t>(shape.rows),
      static_cast<cuuint64_t>(shape.heads), static_cast<cuuint64_t>(shape.pages)};
  const cuuint64_t strides[3] = {stride_bytes(shape.rows, shape.row_stride),
                                 stride_bytes(shape.heads, shape.head_stride),
                                 stride_bytes(shape.pages, shape.page_stride)};
  const cuuint32_t box[4] = {static_cast<cuuint32_t>(row_bytes) / static_cast<cuuint32_t>(element),
                             static_cast<cuuint32_t>(box_rows), 1, 1};
  const cuuint32_t element_strides[4] = {1, 1, 1, 1};
  CUtensorMap map;
  const CUresult result = encode(
      &map, type, 4, view.data, sizes, strides, box, element_strides, CU_TENSOR_MAP_INTERLEAVE_NONE,
      row_bytes == 32 ? CU_TENSOR_MAP_SWIZZLE_32B : CU_TENSOR_MAP_SWIZZLE_128B,
      CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS) {
    fail(ErrorCode::kDevice, "cuTensorMapEncodeTiled refused a tensor {}: error {}",
         view.describe(), static_cast<int>(result));
  }
  return map;
}

}  // namespace fovea::cuda
