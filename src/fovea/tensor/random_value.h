// A number from a seed and an index: the same on every device, in any order.
#pragma once

#include <cstdint>

#ifdef __CUDACC__
#define FOVEA_ON_BOTH __host__ __device__
#else
#define FOVEA_ON_BOTH
#endif

namespace fovea {

/// Uniform in [-1, 1), in steps of 2^-23. Source: the finaliser of SplitMix64, Steele, Lea and
/// Flood, "Fast splittable pseudorandom number generators", 2014.
FOVEA_ON_BOTH constexpr float random_value(uint64_t seed, uint64_t index) {
  uint64_t bits = seed + (index + 1) * 0x9e3779b97f4a7c15u;
  bits = (bits ^ (bits >> 30)) * 0xbf58476d1ce4e5b9u;
  bits = (bits ^ (bits >> 27)) * 0x94d049bb133111ebu;
  bits ^= bits >> 31;
  return static_cast<float>(static_cast<int32_t>(bits >> 40) - (1 << 23)) * 0x1p-23f;
}

}  // namespace fovea

#undef FOVEA_ON_BOTH
