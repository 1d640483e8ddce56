// A strided view of memory on a device, and an owner of such memory.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>

#include "fovea/base/context.h"
#include "fovea/base/dtype.h"

namespace fovea {

constexpr int32_t kMaxRank = 4;

/// Does not own `data`. Shapes and strides run slowest first; strides are in elements.
struct TensorView {
  void* data = nullptr;
  DType dtype = DType::kF32;
  Device device;
  int32_t rank = 0;
  std::array<int64_t, kMaxRank> shape{};
  std::array<int64_t, kMaxRank> stride{};

  bool empty() const { return data == nullptr; }
  int64_t num_elements() const;
  /// "bf16[8192, 9, 64]".
  std::string describe() const;

  template <typename T>
  T* as() const {
    return static_cast<T*>(data);
  }
};

/// A dense row-major view over `data`. Throws kInvalidArgument on a negative size, a rank over
/// kMaxRank or a product past 64 bits.
TensorView make_view(void* data, DType dtype, std::initializer_list<int64_t> shape,
                     Device device = {});

/// Throws kInvalidArgument unless both are dense and have the same type and number of elements.
void check_copy(const TensorView& from, const TensorView& to);

/// Owns zeroed, 64-byte aligned memory of a device with a dense row-major view of it. Moves, does
/// not copy; what was moved from is empty.
class Tensor {
 public:
  Tensor() = default;
  Tensor(Tensor&& other) noexcept;
  Tensor& operator=(Tensor&& other) noexcept;
  /// Throws kOutOfMemory, naming the bytes, when the device has no more; kDevice or kUnsupported
  /// when it cannot be used.
  Tensor(DType dtype, std::initializer_list<int64_t> shape, Device device = {});

  const TensorView& view() const { return view_; }
  bool empty() const { return view_.empty(); }
  int64_t size_bytes() const { return size_bytes_; }
  template <typename T>
  T* as() const {
    return view_.as<T>();
  }

 private:
  struct Free {
    Device device;
    void operator()(void* data) const;
  };
  std::unique_ptr<void, Free> data_;
  TensorView view_;
  int64_t size_bytes_ = 0;
};

}  // namespace fovea
