// Random numbers for making tasks: the same on every machine and compiler, which the distributions
// of the standard library do not promise.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

namespace fovea::quality {

/// SplitMix64, see tensor/random_value.h.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}

  uint64_t next() {
    uint64_t z = (state_ += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  /// In [0, bound), for bounds far below 2^64.
  int64_t below(int64_t bound) {
    return static_cast<int64_t>(next() % static_cast<uint64_t>(bound));
  }
  /// In [0, 1).
  double unit() { return static_cast<double>(next() >> 11) * 0x1p-53; }

 private:
  uint64_t state_;
};

/// The numbers that task `index` of a series is made from.
inline Random task_random(uint64_t seed, int64_t index) {
  return Random(seed * 1000003u + static_cast<uint64_t>(index));
}

/// Takes one of `from` out and returns it.
template <typename T>
T draw_and_remove(std::vector<T>& from, Random& random) {
  const auto pick = from.begin() + random.below(static_cast<int64_t>(from.size()));
  T drawn = *pick;
  from.erase(pick);
  return drawn;
}

template <typename T>
void shuffle(std::vector<T>& values, Random& random) {
  for (size_t left = values.size(); left > 1; --left) {
    std::swap(values[left - 1],
              values[static_cast<size_t>(random.below(static_cast<int64_t>(left)))]);
  }
}

}  // namespace fovea::quality
