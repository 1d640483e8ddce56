#include "fovea/engine/memory.h"

#include <algorithm>
#include <fstream>
#include <limits>

#include "fovea/base/error.h"
#include "fovea/tensor/device_memory.h"

namespace fovea {
namespace {

constexpr int64_t kUnknown = std::numeric_limits<int64_t>::max();

int64_t system_available() {
  std::ifstream file("/proc/meminfo");
  std::string word;
  while (file >> word) {
    int64_t kib = 0;
    if (word == "MemAvailable:" && file >> kib) return kib * 1024;
  }
  return kUnknown;
}

int64_t read_number(const char* path) {
  std::ifstream file(path);
  int64_t number = 0;
  return file >> number ? number : -1;  // "max" is no number
}

int64_t group_available() {
  const int64_t limit = read_number("/sys/fs/cgroup/memory.max");
  const int64_t used = read_number("/sys/fs/cgroup/memory.current");
  return limit < 0 || used < 0 ? kUnknown : std::max<int64_t>(limit - used, 0);
}

}  // namespace

int64_t available_memory_bytes() { return std::min(system_available(), group_available()); }

int64_t free_memory_bytes(Device device) {
  return device.type == DeviceType::kCpu ? available_memory_bytes()
                                         : device_memory(device).free_bytes;
}

std::string memory_text(int64_t bytes) {
  const auto value = static_cast<double>(bytes);
  if (value >= 0x1p30) return fmt::format("{:.1f} GiB", value / 0x1p30);
  if (value >= 0x1p20) return fmt::format("{:.0f} MiB", value / 0x1p20);
  return fmt::format("{:.0f} KiB", value / 0x1p10);
}

void check_memory(int64_t bytes, const std::string& what, const std::string& advice,
                  Device device) {
  const bool is_cpu = device.type == DeviceType::kCpu;
  const int64_t available = free_memory_bytes(device);
  if (bytes > available) {
    fail(ErrorCode::kOutOfMemory, "{} needs {} of memory, {} has {} free; try {}", what,
         memory_text(bytes), is_cpu ? "the machine" : fmt::format("GPU {}", device.index),
         memory_text(available), advice);
  }
}

}  // namespace fovea
