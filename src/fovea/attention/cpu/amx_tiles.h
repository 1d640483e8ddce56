// The tile registers of AMX. Included only by files that are compiled for it.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace fovea::cpu {
namespace {

// The tile intrinsics do not tell the compiler which memory they read and write.
inline void memory_barrier(const void* p) { asm volatile("" : : "r"(p) : "memory"); }

/// Four vectors of 16 elements of 32 bits, turned: element i of all four goes to to(i).
template <class To>
inline void store_turned(const __m512i* rows, const To& to) {
  const __m512i low_a = _mm512_unpacklo_epi32(rows[0], rows[1]);
  const __m512i low_b = _mm512_unpacklo_epi32(rows[2], rows[3]);
  const __m512i high_a = _mm512_unpackhi_epi32(rows[0], rows[1]);
  const __m512i high_b = _mm512_unpackhi_epi32(rows[2], rows[3]);
  // Lane l of turned[j] is element 4 l + j.
  const __m512i turned[4] = {
      _mm512_unpacklo_epi64(low_a, low_b), _mm512_unpackhi_epi64(low_a, low_b),
      _mm512_unpacklo_epi64(high_a, high_b), _mm512_unpackhi_epi64(high_a, high_b)};
  for (int j = 0; j < 4; ++j) {
    const auto store = [&](int64_t i, __m128i lane) {
      _mm_store_si128(reinterpret_cast<__m128i*>(to(i)), lane);
    };
    store(j, _mm512_extracti32x4_epi32(turned[j], 0));
    store(4 + j, _mm512_extracti32x4_epi32(turned[j], 1));
    store(8 + j, _mm512_extracti32x4_epi32(turned[j], 2));
    store(12 + j, _mm512_extracti32x4_epi32(turned[j], 3));
  }
}

/// Eight tiles of 16 rows x 64 bytes. What another library had configured comes back afterwards.
class TileSession {
 public:
  TileSession() {
    _tile_storeconfig(&saved_);
    memory_barrier(&saved_);
    TileConfig config = {};
    config.palette = 1;
    for (int i = 0; i < 8; ++i) {
      config.row_bytes[i] = 64;
      config.rows[i] = 16;
    }
    memory_barrier(&config);
    _tile_loadconfig(&config);
  }
  ~TileSession() {
    if (saved_.palette == 0) {
      _tile_release();
    } else {
      memory_barrier(&saved_);
      _tile_loadconfig(&saved_);
    }
  }
  TileSession(const TileSession&) = delete;
  TileSession& operator=(const TileSession&) = delete;

 private:
  struct alignas(64) TileConfig {
    uint8_t palette;
    uint8_t start_row;
    uint8_t reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
  };
  TileConfig saved_;
};

}  // namespace
}  // namespace fovea::cpu
