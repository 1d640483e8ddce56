// Memory of a call that nobody else sees.
#pragma once

#include <cstddef>
#include <cstdint>
#include <new>

#include "fovea/base/error.h"

namespace fovea::cpu {

/// Uninitialised, 64-byte aligned: zeroing it would cost as much as packing into it.
class Scratch {
 public:
  explicit Scratch(int64_t num_bytes)
      : data_(static_cast<std::byte*>(
            ::operator new (static_cast<size_t>(num_bytes), std::align_val_t{64}, std::nothrow))) {
    if (data_ == nullptr) {
      fail(ErrorCode::kOutOfMemory, "attention needs {} bytes of scratch", num_bytes);
    }
  }
  ~Scratch() { ::operator delete (data_, std::align_val_t{64}); }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  std::byte* data() const { return data_; }

 private:
  std::byte* data_;
};

}  // namespace fovea::cpu
