// Attention and selection of one layer on the CPU, each in turn with what it is held against.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "apps/cli/attention_options.h"
#include "apps/cli/kernel_rows.h"

namespace fovea::cli {

class CpuKernels {
 public:
  /// `step` is told what comes next, before each row. `shape`: heads and type; `knobs` must outlive
  /// this.
  CpuKernels(const KernelShape& shape, const AttentionOptions& knobs, double min_seconds,
             const Context& context, std::function<void(const std::string&)> step);

  /// Dense attention, sparse attention at the knobs' density, every method's selection, decode.
  void measure(int64_t length, const std::vector<std::string>& methods);

  const KernelRates& rates() const { return rates_; }
  const std::vector<KernelRow>& rows() const { return rows_; }

 private:
  Comparison in_turn(const AttentionWork& work, const std::function<void()>& yardstick) const;
  void add_attention(const std::string& kernel, int64_t length, const AttentionWork& work,
                     const Timing& timing, const std::string& against, nlohmann::json figures);
  void add_selection(const std::string& method, int64_t length, double dense_ms);

  KernelShape shape_;
  const AttentionOptions& knobs_;
  double min_seconds_;
  Context context_;
  std::function<void(const std::string&)> step_;
  GemmWork gemm_;
  CopyWork copy_;
  KernelRates rates_;
  std::vector<KernelRow> rows_;
};

}  // namespace fovea::cli
