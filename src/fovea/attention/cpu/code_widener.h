// f8e4m3 becomes bf16, which holds it exactly, by tables in registers (VBMI). Included only by
// files that are compiled for it.
#pragma once

#include <immintrin.h>

#include <bit>
#include <cstdint>

#include "fovea/tensor/float8.h"

namespace fovea::cpu {
namespace {

struct CodeMagnitudes {
  uint8_t low[128], high[128];  // bytes of their bf16
};
constexpr CodeMagnitudes kMagnitudes = [] {
  CodeMagnitudes magnitudes = {};
  for (uint8_t i = 0; i < 128; ++i) {
    const uint32_t bits = std::bit_cast<uint32_t>(to_float(Float8E4M3{i}));  // exact in 16
    magnitudes.low[i] = static_cast<uint8_t>(bits >> 16);
    magnitudes.high[i] = static_cast<uint8_t>(bits >> 24);
  }
  return magnitudes;
}();

/// Elements 0 ... 7 of each 16, and the others, 32 each.
struct WideCodes {
  __m512i first, second;
};

/// Widens 64 codes: both bytes of their magnitudes are looked up, signs kept.
class CodeWidener {
 public:
  WideCodes operator()(__m512i codes) const {
    const __m512i low = _mm512_permutex2var_epi8(low_[0], codes, low_[1]);
    const __m512i magnitude = _mm512_permutex2var_epi8(high_[0], codes, high_[1]);
    // magnitude | (codes & 0x80)
    const __m512i high = _mm512_ternarylogic_epi32(magnitude, codes,
                                                   _mm512_set1_epi8(static_cast<char>(0x80)), 0xf8);
    return {_mm512_unpacklo_epi8(low, high), _mm512_unpackhi_epi8(low, high)};
  }

 private:
  const __m512i low_[2] = {_mm512_loadu_si512(kMagnitudes.low),
                           _mm512_loadu_si512(kMagnitudes.low + 64)};
  const __m512i high_[2] = {_mm512_loadu_si512(kMagnitudes.high),
                            _mm512_loadu_si512(kMagnitudes.high + 64)};
};

}  // namespace
}  // namespace fovea::cpu
