// The tile registers of AMX. Included only by files that are compiled for it.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace fovea::cpu {
namespace {

// The tile intrinsics do not tell the compiler which memory they read and write.
inline void memory_barrier(const void* p) { asm volatile("" : : "r"(p) : "memory"); }

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
