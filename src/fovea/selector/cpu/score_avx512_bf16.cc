#include "fovea/selector/cpu/score_kernel.h"

namespace fovea {
namespace {

// VDPBF16PS: each lane adds two products of bf16 pairs in f32.
struct Bf16Product {
  using Element = BFloat16;
  static constexpr int64_t kRows = 16;
  static void begin() {}
  static void end() {}
  static void run(const ScoreTask& task, int64_t group, int64_t rep, const BFloat16* q,
                  int64_t rows, float* logits) {
    const int64_t head_dim = task.head_dim;
    const BFloat16* packed = packed_tile<BFloat16>(task, group, rep);
    for (int64_t r = 0; r < rows; r += kRows) {
      __m512 sum[kRows];
      for (auto& lanes : sum) lanes = _mm512_setzero_ps();
      for (int64_t c = 0; c < head_dim; c += 2) {
        const auto pairs = bits_as<__m512bh>(_mm512_loadu_si512(packed + c * kGroupBlocks));
        for (int64_t i = 0; i < kRows; ++i) {
          int32_t pair;
          std::memcpy(&pair, q + (r + i) * head_dim + c, sizeof(pair));
          sum[i] = _mm512_dpbf16_ps(sum[i], bits_as<__m512bh>(_mm512_set1_epi32(pair)), pairs);
        }
      }
      for (int64_t i = 0; i < kRows; ++i) _mm512_storeu_ps(logits + (r + i) * kGroupBlocks, sum[i]);
    }
  }
};

}  // namespace

bool score_avx512_bf16(const ScoreTask& task) { return score_blocks<Bf16Product>(task); }

}  // namespace fovea
