// Times attention alone, beside what the same machine does at the same time: a matrix product and a
// copy. For attention_bench and for `fovea kernels`.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>

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

/// oneDNN's square product of f32 or bf16 (f32 sums) at the fastest of three sizes.
class GemmWork {
 public:
  explicit GemmWork(DType dtype);
  ~GemmWork();
  void run() const;
  double flops() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Copies 128 MB between two buffers.
class CopyWork {
 public:
  explicit CopyWork(const Context& context);
  void run() const;
  double bytes() const;  // read and written together

 private:
  Context context_;
  std::unique_ptr<std::byte[]> from_, to_;
};

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

/// attend() on built data. The constructor and run() throw as attend() does.
class AttentionWork {
 public:
  AttentionWork(const KernelShape& shape, const Context& context);
  ~AttentionWork();
  void run() const;
  std::string_view backend() const;
  double density() const;   // of the lists, which round to whole blocks
  double flops() const;     // 4 head_dim per visible (query, key) pair, times density
  double kv_bytes() const;  // of K and V, once

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Units per millisecond as G per second.
constexpr double giga_per_s(double amount, double ms) { return amount / ms / 1e6; }

}  // namespace fovea
