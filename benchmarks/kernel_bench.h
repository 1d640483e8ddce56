// Times attention alone, beside what the same machine does in the same run: a matrix product and a
// copy. For attention_bench and for `fovea kernels`.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "fovea/attention/attention.h"

namespace fovea {

/// Milliseconds of wall clock.
struct Timing {
  double median_ms = 0;
  double min_ms = 0;
  double max_ms = 0;
  int32_t repetitions = 0;
};

/// Calls `body` once to warm up, then until `min_seconds` have passed, 3 to 200 times.
Timing time_repeatedly(const std::function<void()>& body, double min_seconds);

/// GFLOP/s of oneDNN on a square product of f32 or bf16 (f32 sums), the best of 1024, 2048 and
/// 4096.
double measure_gemm_gflops(DType dtype, const Context& context);

/// GB/s of copying 128 MB between buffers, bytes read and bytes written together.
double measure_copy_gb_per_s(const Context& context);

/// One sequence; causal, paged with pages of 128.
struct KernelShape {
  DType dtype = DType::kBF16;
  int64_t q_len = 0;
  int64_t kv_len = 0;
  int64_t head_dim = 64;
  int64_t num_q_heads = 3;
  int64_t num_kv_heads = 1;
  /// Below 1: random lists of blocks of 128, the diagonal always among them.
  double density = 1;
  bool has_periphery = false;
};

struct KernelMeasurement {
  std::string backend;
  Timing timing;
  double density = 1;       // of the lists, which round to whole blocks
  double useful_flops = 0;  // 4 head_dim per visible (query, key) pair, times density
  double kv_bytes = 0;      // of K and V, once

  double gflops() const { return useful_flops / timing.median_ms / 1e6; }
  double kv_gb_per_s() const { return kv_bytes / timing.median_ms / 1e6; }
};

/// Times attend() on built data. Throws as attend() does.
KernelMeasurement measure_attention(const KernelShape& shape, const Context& context,
                                    double min_seconds);

}  // namespace fovea
