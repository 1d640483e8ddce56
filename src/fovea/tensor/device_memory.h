// Memory of a GPU, for files that include no CUDA header. A build without CUDA has these functions
// too; they throw kUnsupported.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "fovea/base/context.h"
#include "fovea/tensor/tensor.h"

namespace fovea {

/// Empty when the device can be used, else the reason in one line. The CPU always can.
std::string why_unusable(Device device);
/// Throws kDevice with that reason.
void check_usable(Device device);

/// What a GPU calls itself, for example "NVIDIA H200"; empty for the CPU.
std::string device_name(Device device);

/// Bytes of a GPU's memory: free now, and all there are.
struct DeviceMemory {
  int64_t free_bytes = 0;
  int64_t total_bytes = 0;
};
DeviceMemory device_memory(Device device);

/// Zeroed memory of a GPU, aligned to 256 bytes. Throws kOutOfMemory saying how much was asked for
/// and how much is free.
void* allocate_device_memory(int64_t bytes, Device device);
void free_device_memory(void* data, Device device) noexcept;

/// A new stream, for Context::stream; null on the CPU.
std::shared_ptr<void> make_stream(Device device);

/// Copies a dense tensor onto another of the same type and number of elements, between any two
/// devices, in the order of the context's stream. Waits when one of them is the CPU's. Throws
/// kInvalidArgument on tensors that do not fit.
void copy_tensor(const TensorView& from, const TensorView& to, const Context& context);

/// What a dense tensor holds, where the CPU can read it: itself if it is the CPU's, else a copy in
/// `buffer`, which grows to it. Waits.
TensorView readable_on_cpu(const TensorView& tensor, Tensor& buffer, const Context& context);

/// Memory of the CPU that enqueue_copy() can copy from and to: page-locked for a GPU. Throws
/// kOutOfMemory.
std::shared_ptr<void> make_staging(int64_t bytes, Device device);

/// As copy_tensor(), but waits for nothing on a GPU: what is the CPU's is make_staging()'s, and is
/// not touched until the stream has come past the copy.
void enqueue_copy(const TensorView& from, const TensorView& to, const Context& context);

/// Waits until everything asked of the context's stream is done. Throws kDevice when any of it
/// failed.
void synchronize(const Context& context);

}  // namespace fovea
