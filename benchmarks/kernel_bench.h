// Times attention alone, beside what the same device does at the same time: a matrix product and a
// copy. For attention_bench and for `fovea kernels`.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>
#include <vector>

#include "fovea/attention/attention.h"
#include "fovea/base/context.h"

namespace fovea {

/// Milliseconds, of the wall clock or of a GPU's.
struct Timing {
  double median_ms = 0;
  double min_ms = 0;
  double max_ms = 0;
  int32_t repetitions = 0;
};

/// Of single measurements in milliseconds, at least one.
Timing to_timing(std::vector<double> times_ms);

/// Calls `body` once to warm up, then until `min_seconds` have passed, 3 to 200 times.
Timing time_repeatedly(const std::function<void()>& body, double min_seconds);

/// How often `work` could run in the time of one `yardstick`.
struct Comparison {
  Timing work;
  Timing yardstick;
  double ratio = 0;      // yardstick time / work time, median of the rounds
  double ratio_low = 0;  // quartiles of the rounds
  double ratio_high = 0;
};

/// Times the two in turn, in rounds of some 20 ms each, so that what else runs on the machine meets
/// both: at least 3 rounds, then until `min_seconds` have passed.
Comparison time_in_turn(const std::function<void()>& work, const std::function<void()>& yardstick,
                        double min_seconds);

/// What a GPU's clock does while it is timed: it is power-limited, and 10 % slower when kept busy.
enum class GpuRegime {
  kSustained,  // after 200 ms of the same work, without a pause
  kBurst,      // 8 ms at a time, each after as long a pause
};

/// Times `body`, whose work must all be asked of the context's stream (not the default one), 5 to
/// 60 times, 3 where it takes more than 100 ms. It runs once to set up what it needs. Then, if
/// `as_graph`, it is captured and replayed, so that the time of the host counts nowhere; copies
/// alone are faster without.
Timing time_on_gpu(const std::function<void()>& body, GpuRegime regime, const Context& context,
                   bool as_graph = true);

/// Most bytes of scratch, which kernels take in stream order, that `body` held at once. Waits.
int64_t scratch_bytes_on_gpu(const std::function<void()>& body, const Context& context);

/// A square product with f32 sums. On the CPU oneDNN's of f32 or bf16 at the fastest of three
/// sizes, on a GPU cuBLASLt's of bf16, 8192^3.
class GemmWork {
 public:
  GemmWork(DType dtype, const Context& context);
  ~GemmWork();
  void run() const;
  double flops() const;

 private:
  struct Impl;
  struct CpuImpl;
  struct GpuImpl;
  std::unique_ptr<Impl> impl_;
};

/// Copies between two buffers: 128 MB on the CPU, 2 GB on a GPU.
class CopyWork {
 public:
  explicit CopyWork(const Context& context);
  void run() const;
  double bytes() const;  // read and written together

 private:
  Context context_;
  Tensor from_, to_;
};

/// Sequences of one length; causal.
struct KernelShape {
  DType dtype = DType::kBF16;
  int64_t q_len = 0;
  int64_t kv_len = 0;
  int64_t head_dim = 64;
  int64_t num_q_heads = 3;
  int64_t num_kv_heads = 1;
  /// Below 1: random lists of blocks of 128, the diagonal always among them; one sequence.
  double density = 1;
  bool has_periphery = false;
  int64_t window_left = -1;
  int64_t page_size = 128;  // 0: contiguous; pages lie in random order
  int64_t batch_size = 1;
};

/// attend() on random data. The constructor and run() throw as attend() does.
class AttentionWork {
 public:
  AttentionWork(const KernelShape& shape, const Context& context);
  ~AttentionWork();
  void run() const;
  std::string_view backend() const;
  double density() const;   // of the lists, which round to whole blocks
  double flops() const;     // 4 head_dim per visible (query, key) pair, times density
  double kv_bytes() const;  // of K and V, once
  /// Its arguments, for calls that differ in one.
  const AttentionParams& params() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Units per millisecond as G per second.
constexpr double giga_per_s(double amount, double ms) { return amount / ms / 1e6; }

}  // namespace fovea
