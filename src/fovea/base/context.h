// Where and with what an operation runs.
#pragma once

#include <cstdint>

namespace fovea {

enum class DeviceType { kCpu, kCuda };

struct Device {
  DeviceType type = DeviceType::kCpu;
  int32_t index = 0;
  friend bool operator==(const Device&, const Device&) = default;
};

/// Passed to every operation. Cheap to copy.
struct Context {
  Device device = {};
  /// CPU threads an operation may use; 0 means OMP_NUM_THREADS, or as many as there are cores.
  int32_t num_threads = 0;
  /// cudaStream_t of the device, null for the default stream; unused on the CPU.
  void* stream = nullptr;
};

}  // namespace fovea
