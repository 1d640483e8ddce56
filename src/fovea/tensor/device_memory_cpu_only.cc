// device_memory.h in a build without CUDA.
#include <cstring>
#include <new>

#include "fovea/base/error.h"
#include "fovea/tensor/device_memory.h"

namespace fovea {

std::string why_unusable(Device device) {
  if (device.type == DeviceType::kCpu) return {};
  return "this build has no CUDA: configure it with the preset cuda";
}

void check_usable(Device device) {
  const std::string reason = why_unusable(device);
  if (!reason.empty()) fail(ErrorCode::kUnsupported, "{}", reason);
}

std::string device_name(Device device) {
  check_usable(device);
  return {};
}

DeviceMemory device_memory(Device device) {
  check_usable(device);
  return {};
}

void* allocate_device_memory(int64_t, Device device) {
  check_usable(device);
  return nullptr;
}

void free_device_memory(void*, Device) noexcept {}

std::shared_ptr<void> make_stream(Device device) {
  check_usable(device);
  return nullptr;
}

std::shared_ptr<void> make_staging(int64_t bytes, Device device) {
  check_usable(device);
  return {::operator new(static_cast<size_t>(bytes)), [](void* data) { ::operator delete(data); }};
}

void enqueue_copy(const TensorView& from, const TensorView& to, const Context&) {
  check_copy(from, to);
  check_usable(from.device);
  check_usable(to.device);
  std::memcpy(to.data, from.data, static_cast<size_t>(to.num_elements() * dtype_bytes(to.dtype)));
}

void copy_tensor(const TensorView& from, const TensorView& to, const Context& context) {
  enqueue_copy(from, to, context);
}

void synchronize(const Context& context) { check_usable(context.device); }

}  // namespace fovea
