// The table of docs/benchmarks.md that needs no other library: attention, selection and decode of
// one layer on a GPU, each beside what this card does best.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "apps/cli/kernel_rows.h"
#include "apps/cli/selection_timing.h"

namespace fovea::cli {

/// Every case there is, in order: what --cases takes.
std::vector<std::string> gpu_case_names();

/// Measures cases on one GPU; 32 q and 4 kv heads of 128 in bf16 unless the row says otherwise.
class GpuKernels {
 public:
  /// `step` is told what comes next, before each row. Throws kDevice or kUnsupported when the GPU
  /// or cuBLASLt cannot be used.
  GpuKernels(Device device, GpuRegime regime, std::function<void(const std::string&)> step);

  /// Throws kInvalidArgument on a name that gpu_case_names() lacks.
  void measure(const std::string& name);

  /// The best of what was measured; rows are compared with the GEMM rate measured right after them.
  const KernelRates& rates() const { return rates_; }
  const std::vector<KernelRow>& rows() const { return rows_; }

 private:
  struct Target {
    double floor, goal;
  };

  void dense();
  void head_dims();
  void windows();
  void pages();
  void sparse();
  void selections();
  void whole();
  void decode();

  Timing time(const std::function<void()>& body) const;
  /// GFLOP/s of a product now: the card's clock is another after other work.
  double gemm_gflops();
  /// Adds a dense row, with its share of the GEMM rate.
  KernelRow& add_dense(const std::string& kernel, int64_t length, const AttentionWork& work);
  /// Of the whole prompt of `length` tokens, measured once.
  double dense_ms(int64_t length);
  KernelRow& add(const std::string& kernel, int64_t length, const AttentionWork& work,
                 const Timing& timing);
  void add_sparse(int64_t length, double density, bool has_periphery, Target target);
  void add_scratch(int64_t length, double density, Target megabytes);
  void add_decode(int64_t batch_size, int64_t length);
  void compare(KernelRow& row, const char* name, double figure, const char* unit);
  void compare(KernelRow& row, const char* name, double figure, const char* unit, Target target);
  static void set_target(KernelRow& row, Target target);

  std::shared_ptr<void> stream_;
  Context context_;
  GpuRegime regime_;
  std::function<void(const std::string&)> step_;
  std::unique_ptr<GemmWork> gemm_;
  KernelRates rates_;
  std::vector<std::pair<int64_t, double>> dense_ms_;
  std::vector<KernelRow> rows_;
};

}  // namespace fovea::cli
