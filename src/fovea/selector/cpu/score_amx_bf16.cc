#include "fovea/selector/cpu/score_kernel.h"

namespace fovea {
namespace {

struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
};

// Tiles 0-3 hold sums of 16 query rows x 16 blocks each, 4 and 6 queries, 5 keys, 32 channels a
// step.
struct AmxProduct {
  using Element = BFloat16;
  static constexpr int64_t kRows = 16;

  // The configuration belongs to the thread and is released, so that no other user of tiles (the
  // matrix library, attention) finds it.
  static void begin() {
    TileConfig config;
    for (int t = 0; t < 7; ++t) {
      config.row_bytes[t] = 64;
      config.rows[t] = 16;
    }
    _tile_loadconfig(&config);
  }
  static void end() { _tile_release(); }

  static void run(const ScoreTask& task, int64_t group, int64_t rep, const BFloat16* q,
                  int64_t rows, float* logits) {
    const int64_t head_dim = task.head_dim;
    const BFloat16* packed = packed_tile<BFloat16>(task, group, rep);
    const int64_t q_bytes = head_dim * 2;
    int64_t r = 0;
    for (; r + 64 <= rows; r += 64) {
      _tile_zero(0);
      _tile_zero(1);
      _tile_zero(2);
      _tile_zero(3);
      for (int64_t c = 0; c < head_dim; c += 32) {
        const BFloat16* from = q + r * head_dim + c;
        _tile_loadd(5, packed + c * kGroupBlocks, 64);
        _tile_loadd(4, from, q_bytes);
        _tile_dpbf16ps(0, 4, 5);
        _tile_loadd(6, from + 16 * head_dim, q_bytes);
        _tile_dpbf16ps(1, 6, 5);
        _tile_loadd(4, from + 32 * head_dim, q_bytes);
        _tile_dpbf16ps(2, 4, 5);
        _tile_loadd(6, from + 48 * head_dim, q_bytes);
        _tile_dpbf16ps(3, 6, 5);
      }
      float* to = logits + r * kGroupBlocks;
      _tile_stored(0, to, 64);
      _tile_stored(1, to + 16 * kGroupBlocks, 64);
      _tile_stored(2, to + 32 * kGroupBlocks, 64);
      _tile_stored(3, to + 48 * kGroupBlocks, 64);
    }
    for (; r < rows; r += 16) {
      _tile_zero(0);
      for (int64_t c = 0; c < head_dim; c += 32) {
        _tile_loadd(5, packed + c * kGroupBlocks, 64);
        _tile_loadd(4, q + r * head_dim + c, q_bytes);
        _tile_dpbf16ps(0, 4, 5);
      }
      _tile_stored(0, logits + r * kGroupBlocks, 64);
    }
  }
};

}  // namespace

bool score_amx_bf16(const ScoreTask& task) { return score_blocks<AmxProduct>(task); }

}  // namespace fovea
