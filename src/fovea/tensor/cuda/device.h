// The GPU as this folder uses it: is there one, which, and scratch memory in stream order.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <string>

#include "fovea/base/context.h"
#include "fovea/base/error.h"
#include "fovea/tensor/cuda/check.h"
#include "fovea/tensor/tensor.h"

namespace fovea::cuda {

/// Empty when a Hopper GPU of this index can be used, else the reason in one line. Never throws:
/// a machine without GPU or driver is an ordinary case.
std::string why_no_device(int32_t index);

/// Streaming multiprocessors of a device; asked once.
int num_multiprocessors(int32_t index);

/// Makes the context's device current while it lives.
class DeviceScope {
 public:
  explicit DeviceScope(const Context& context);
  ~DeviceScope();
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;

 private:
  int previous_ = 0;
};

inline cudaStream_t stream_of(const Context& context) {
  return static_cast<cudaStream_t>(context.stream);
}

/// What Workspace takes from. A pool of our own per device: the default one gives its memory back
/// at every synchronisation, which would cost each launch an allocation.
cudaMemPool_t scratch_pool_of_current_device();

/// Memory that workspaces of one stream are taken from, instead of the pool, while a Use of it
/// lives in their thread. A captured stream's nodes for pool memory would keep the kernels around
/// them from overlapping.
class ScratchArena {
 public:
  /// Until a fit() after it, everything comes from the pool; the arena only learns what is needed.
  class Use {
   public:
    explicit Use(ScratchArena& arena);
    ~Use();
    Use(const Use&) = delete;
    Use& operator=(const Use&) = delete;

   private:
    ScratchArena* previous_;
  };
  /// Makes room for what uses of it took at most. Not during a capture.
  void fit(const Context& context);

 private:
  friend class Workspace;
  /// Workspaces end in the opposite order of their making. Null when the arena is too small.
  void* take(int64_t bytes);
  void give(int64_t bytes) { used_ -= bytes; }

  Tensor memory_;
  int64_t used_ = 0;
  int64_t peak_ = 0;
};

/// Scratch that lives for the launches between its making and its end, in stream order: nothing
/// waits, and a stream capture records it. Throws kOutOfMemory saying how much was asked for what.
class Workspace {
 public:
  Workspace(int64_t bytes, const char* purpose, const Context& context);
  ~Workspace();
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;

  /// Takes the next `count` elements, aligned to 256 bytes.
  template <typename T>
  T* take(int64_t count) {
    auto* taken = reinterpret_cast<T*>(static_cast<char*>(data_) + used_);
    used_ += padded(count * static_cast<int64_t>(sizeof(T)));
    check_argument(used_ <= bytes_, "workspace of {} bytes is too small", bytes_);
    return taken;
  }
  static constexpr int64_t padded(int64_t bytes) { return (bytes + 255) / 256 * 256; }

 private:
  void* data_ = nullptr;
  int64_t bytes_ = 0;
  int64_t used_ = 0;
  bool is_of_pool_ = false;
  cudaStream_t stream_ = nullptr;
  ScratchArena* arena_ = nullptr;  // that has given, or counted, it
};

}  // namespace fovea::cuda
