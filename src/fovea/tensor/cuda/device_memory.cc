#include "fovea/tensor/device_memory.h"

#include <cstring>
#include <new>

#include "fovea/tensor/cuda/device.h"

namespace fovea {

using cuda::check_cuda;

std::string why_unusable(Device device) {
  return device.type == DeviceType::kCpu ? std::string() : cuda::why_no_device(device.index);
}

void check_usable(Device device) {
  const std::string reason = why_unusable(device);
  if (!reason.empty()) fail(ErrorCode::kDevice, "{}", reason);
}

std::string device_name(Device device) {
  if (device.type == DeviceType::kCpu) return {};
  check_usable(device);
  cudaDeviceProp properties = {};
  check_cuda(cudaGetDeviceProperties(&properties, device.index), "asking for a GPU's name");
  return properties.name;
}

DeviceMemory device_memory(Device device) {
  check_usable(device);
  const cuda::DeviceScope scope({device, 0, nullptr});
  size_t free_bytes = 0;
  size_t total_bytes = 0;
  check_cuda(cudaMemGetInfo(&free_bytes, &total_bytes), "asking for a GPU's free memory");
  return {static_cast<int64_t>(free_bytes), static_cast<int64_t>(total_bytes)};
}

void* allocate_device_memory(int64_t bytes, Device device) {
  check_usable(device);
  const cuda::DeviceScope scope({device, 0, nullptr});
  void* data = nullptr;
  const cudaError_t status = cudaMalloc(&data, static_cast<size_t>(bytes));
  if (status == cudaErrorMemoryAllocation) {
    static_cast<void>(cudaGetLastError());
    fail(ErrorCode::kOutOfMemory, "GPU {} has no {} bytes left, {} are free", device.index, bytes,
         device_memory(device).free_bytes);
  }
  check_cuda(status, "allocating GPU memory");
  check_cuda(cudaMemset(data, 0, static_cast<size_t>(bytes)), "clearing GPU memory");
  check_cuda(cudaDeviceSynchronize(), "clearing GPU memory");  // streams do not wait for it
  return data;
}

void free_device_memory(void* data, Device device) noexcept {
  int previous = 0;
  static_cast<void>(cudaGetDevice(&previous));
  static_cast<void>(cudaSetDevice(device.index));
  static_cast<void>(cudaFree(data));
  static_cast<void>(cudaSetDevice(previous));
}

std::shared_ptr<void> make_stream(Device device) {
  if (device.type == DeviceType::kCpu) return nullptr;
  check_usable(device);
  const cuda::DeviceScope scope({device, 0, nullptr});
  cudaStream_t stream = nullptr;
  check_cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "making a stream");
  return {stream, [](void* made) {
            static_cast<void>(cudaStreamDestroy(static_cast<cudaStream_t>(made)));
          }};
}

std::shared_ptr<void> make_staging(int64_t bytes, Device device) {
  const auto size = static_cast<size_t>(bytes);
  if (device.type == DeviceType::kCpu) {
    return {::operator new(size), [](void* data) { ::operator delete(data); }};
  }
  const cuda::DeviceScope scope({device, 0, nullptr});
  void* data = nullptr;
  const cudaError_t status = cudaMallocHost(&data, size);
  if (status == cudaErrorMemoryAllocation) {
    static_cast<void>(cudaGetLastError());
    fail(ErrorCode::kOutOfMemory, "the machine has no {} bytes of page-locked memory left", bytes);
  }
  check_cuda(status, "allocating page-locked memory");
  return {data, [](void* made) { static_cast<void>(cudaFreeHost(made)); }};
}

void enqueue_copy(const TensorView& from, const TensorView& to, const Context& context) {
  check_copy(from, to);
  const auto bytes = static_cast<size_t>(to.num_elements() * dtype_bytes(to.dtype));
  if (bytes == 0) return;
  const bool from_cpu = from.device.type == DeviceType::kCpu;
  const bool to_cpu = to.device.type == DeviceType::kCpu;
  if (from_cpu && to_cpu) {
    std::memcpy(to.data, from.data, bytes);
    return;
  }
  const cuda::DeviceScope scope({to_cpu ? from.device : to.device, 0, nullptr});
  check_cuda(
      cudaMemcpyAsync(to.data, from.data, bytes, cudaMemcpyDefault, cuda::stream_of(context)),
      "copying a tensor");
}

void copy_tensor(const TensorView& from, const TensorView& to, const Context& context) {
  enqueue_copy(from, to, context);
  const bool from_cpu = from.device.type == DeviceType::kCpu;
  const bool to_cpu = to.device.type == DeviceType::kCpu;
  if (from_cpu != to_cpu) {
    const cuda::DeviceScope scope({to_cpu ? from.device : to.device, 0, nullptr});
    check_cuda(cudaStreamSynchronize(cuda::stream_of(context)), "copying a tensor");
  }
}

void synchronize(const Context& context) {
  if (context.device.type == DeviceType::kCpu) return;
  const cuda::DeviceScope scope(context);
  check_cuda(cudaStreamSynchronize(cuda::stream_of(context)), "work on the GPU");
}

}  // namespace fovea
