#include "fovea/tensor/tensor.h"

#include <cstdlib>
#include <utility>

#include "fovea/base/checked_math.h"
#include "fovea/tensor/device_memory.h"

namespace fovea {

int64_t TensorView::num_elements() const {
  int64_t count = 1;
  for (int32_t i = 0; i < rank; ++i) count *= shape[static_cast<size_t>(i)];
  return count;
}

std::string TensorView::describe() const {
  std::string text(dtype_name(dtype));
  text += '[';
  for (int32_t i = 0; i < rank; ++i) {
    if (i > 0) text += ", ";
    text += std::to_string(shape[static_cast<size_t>(i)]);
  }
  return text + ']';
}

TensorView make_view(void* data, DType dtype, std::initializer_list<int64_t> shape, Device device) {
  check_argument(shape.size() <= kMaxRank, "rank must be at most {}, got {}", kMaxRank,
                 shape.size());
  TensorView view;
  view.data = data;
  view.dtype = dtype;
  view.device = device;
  for (const int64_t size : shape) {
    check_argument(size >= 0, "tensor sizes must not be negative, got {}", size);
    view.shape[static_cast<size_t>(view.rank++)] = size;
  }
  int64_t stride = 1;
  for (int32_t i = view.rank - 1; i >= 0; --i) {
    view.stride[static_cast<size_t>(i)] = stride;
    stride = checked_mul(stride, view.shape[static_cast<size_t>(i)], "tensor size");
  }
  return view;
}

void check_copy(const TensorView& from, const TensorView& to) {
  const auto is_dense = [](const TensorView& view) {
    int64_t stride = 1;
    for (int32_t i = view.rank - 1; i >= 0; --i) {
      const auto dim = static_cast<size_t>(i);
      if (view.shape[dim] != 1 && view.stride[dim] != stride) return false;
      stride *= view.shape[dim];
    }
    return true;
  };
  check_argument(is_dense(from) && is_dense(to) && from.dtype == to.dtype &&
                     from.num_elements() == to.num_elements(),
                 "cannot copy {} to {}: both must be dense and hold as much", from.describe(),
                 to.describe());
}

TensorView readable_on_cpu(const TensorView& tensor, Tensor& buffer, const Context& context) {
  if (tensor.device.type == DeviceType::kCpu) return tensor;
  const int64_t bytes = tensor.num_elements() * dtype_bytes(tensor.dtype);
  if (buffer.size_bytes() < bytes) buffer = Tensor(tensor.dtype, {tensor.num_elements()});
  TensorView copy = tensor;
  copy.data = buffer.view().data;
  copy.device = {};
  copy_tensor(tensor, copy, context);
  return copy;
}

Tensor::Tensor(DType dtype, std::initializer_list<int64_t> shape, Device device)
    : data_(nullptr, Free{device}), view_(make_view(nullptr, dtype, shape, device)) {
  constexpr int64_t kAlignment = 64;
  size_bytes_ = checked_mul(view_.num_elements(), dtype_bytes(dtype), "tensor bytes");
  if (size_bytes_ == 0) return;
  if (device.type != DeviceType::kCpu) {
    data_.reset(allocate_device_memory(size_bytes_, device));
    view_.data = data_.get();
    return;
  }
  // calloc's memory is zero without being touched: a large cache costs only what is written.
  const int64_t padded = checked_add(size_bytes_, 2 * kAlignment, "tensor bytes");
  data_.reset(std::calloc(static_cast<size_t>(padded), 1));
  if (data_ == nullptr) {
    fail(ErrorCode::kOutOfMemory, "cannot allocate {} bytes for a tensor {}", size_bytes_,
         view_.describe());
  }
  void* aligned = data_.get();
  auto space = static_cast<size_t>(padded);
  view_.data =
      std::align(kAlignment, static_cast<size_t>(size_bytes_ + kAlignment), aligned, space);
}

Tensor::Tensor(Tensor&& other) noexcept
    : data_(std::move(other.data_)),
      view_(std::exchange(other.view_, {})),
      size_bytes_(std::exchange(other.size_bytes_, 0)) {}

Tensor& Tensor::operator=(Tensor&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(view_, other.view_);
  std::swap(size_bytes_, other.size_bytes_);
  return *this;
}

void Tensor::Free::operator()(void* data) const {
  if (device.type == DeviceType::kCpu) {
    std::free(data);
  } else {
    free_device_memory(data, device);
  }
}

}  // namespace fovea
