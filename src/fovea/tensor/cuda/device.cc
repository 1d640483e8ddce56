#include "fovea/tensor/cuda/device.h"

#include <algorithm>
#include <array>
#include <mutex>

namespace fovea::cuda {
namespace {

constexpr int32_t kMaxDevices = 64;

}  // namespace

void check_cuda(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  static_cast<void>(cudaGetLastError());  // so that the next call does not report it again
  fail(ErrorCode::kDevice, "{} failed: {}", what, cudaGetErrorString(status));
}

std::string why_no_device(int32_t index) {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status != cudaSuccess || count == 0) {
    static_cast<void>(cudaGetLastError());
    return fmt::format("no GPU: {}",
                       status == cudaSuccess ? "none found" : cudaGetErrorString(status));
  }
  if (index < 0 || index >= count || index >= kMaxDevices) {
    return fmt::format("no GPU {}: this machine has {}", index, count);
  }
  int major = 0;
  int minor = 0;
  if (cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, index) != cudaSuccess ||
      cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, index) != cudaSuccess) {
    static_cast<void>(cudaGetLastError());
    return fmt::format("GPU {} does not answer", index);
  }
  if (major != 9 || minor != 0) {
    return fmt::format("GPU {} has compute capability {}.{}, these kernels need 9.0 (Hopper)",
                       index, major, minor);
  }
  return {};
}

int num_multiprocessors(int32_t index) {
  static std::array<int, kMaxDevices> counts{};
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  int& count = counts.at(static_cast<size_t>(index));
  if (count == 0) {
    check_cuda(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, index),
               "counting multiprocessors");
  }
  return count;
}

DeviceScope::DeviceScope(const Context& context) {
  check_cuda(cudaGetDevice(&previous_), "asking for the current device");
  if (previous_ != context.device.index) {
    check_cuda(cudaSetDevice(context.device.index), "choosing a device");
  }
}

DeviceScope::~DeviceScope() { static_cast<void>(cudaSetDevice(previous_)); }

cudaMemPool_t scratch_pool_of_current_device() {
  static std::array<cudaMemPool_t, kMaxDevices> pools{};
  static std::mutex mutex;
  int index = 0;
  check_cuda(cudaGetDevice(&index), "asking for the current device");
  const std::lock_guard lock(mutex);
  auto& pool = pools.at(static_cast<size_t>(index));
  if (pool == nullptr) {
    cudaMemPoolProps properties = {};
    properties.allocType = cudaMemAllocationTypePinned;
    properties.location.type = cudaMemLocationTypeDevice;
    properties.location.id = index;
    check_cuda(cudaMemPoolCreate(&pool, &properties), "creating a memory pool");
    uint64_t keep = UINT64_MAX;
    check_cuda(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &keep),
               "configuring a memory pool");
  }
  return pool;
}

namespace {

thread_local ScratchArena* arena_in_use = nullptr;

}  // namespace

ScratchArena::Use::Use(ScratchArena& arena) : previous_(arena_in_use) { arena_in_use = &arena; }
ScratchArena::Use::~Use() { arena_in_use = previous_; }

void ScratchArena::fit(const Context& context) {
  if (memory_.size_bytes() >= peak_) return;
  memory_ = Tensor();  // first, so that both need not fit
  memory_ = Tensor(DType::kI32, {peak_ / 4}, context.device);
}

void* ScratchArena::take(int64_t bytes) {
  used_ += bytes;
  peak_ = std::max(peak_, used_);
  return used_ <= memory_.size_bytes() ? memory_.as<char>() + used_ - bytes : nullptr;
}

Workspace::Workspace(int64_t bytes, const char* purpose, const Context& context)
    : bytes_(padded(bytes)) {
  if (bytes == 0) return;
  arena_ = arena_in_use;
  if (arena_ != nullptr) data_ = arena_->take(bytes_);
  if (data_ != nullptr) return;
  stream_ = stream_of(context);
  is_of_pool_ = true;
  const cudaError_t status = cudaMallocFromPoolAsync(&data_, static_cast<size_t>(bytes_),
                                                     scratch_pool_of_current_device(), stream_);
  if (status != cudaSuccess && arena_ != nullptr) arena_->give(bytes_);
  if (status == cudaErrorMemoryAllocation) {
    static_cast<void>(cudaGetLastError());
    fail(ErrorCode::kOutOfMemory, "GPU {} has no {} bytes left for {}", context.device.index, bytes,
         purpose);
  }
  check_cuda(status, "allocating a workspace");
}

Workspace::~Workspace() {
  if (arena_ != nullptr) arena_->give(bytes_);
  if (is_of_pool_) static_cast<void>(cudaFreeAsync(data_, stream_));
}

}  // namespace fovea::cuda
