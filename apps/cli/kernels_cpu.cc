#include "apps/cli/kernels_cpu.h"

#include <fmt/format.h>

#include <utility>

#include "apps/cli/selection_timing.h"
#include "apps/cli/table.h"

namespace fovea::cli {

CpuKernels::CpuKernels(const KernelShape& shape, const AttentionOptions& knobs, double min_seconds,
                       const Context& context, std::function<void(const std::string&)> step)
    : shape_(shape),
      knobs_(knobs),
      min_seconds_(min_seconds),
      context_(context),
      step_(std::move(step)),
      gemm_(shape.dtype, context),
      copy_(context) {
  constexpr double kRateSeconds = 0.5;
  step_("the machine's own rates");
  rates_.gemm_gflops =
      giga_per_s(gemm_.flops(), time_repeatedly([&] { gemm_.run(); }, kRateSeconds).median_ms);
  rates_.copy_gb_per_s =
      giga_per_s(copy_.bytes(), time_repeatedly([&] { copy_.run(); }, kRateSeconds).median_ms);
}

void CpuKernels::measure(int64_t length, const std::vector<std::string>& methods) {
  KernelShape shape = shape_;
  shape.q_len = shape.kv_len = length;
  step_(fmt::format("attention over {} tokens", length));
  const AttentionWork dense(shape, context_);
  const Comparison to_gemm = in_turn(dense, [&] { gemm_.run(); });
  const double gemm_ratio = to_gemm.ratio * dense.flops() / gemm_.flops();
  add_attention("attention", length, dense, to_gemm.work, fmt::format("{:.2f} of GEMM", gemm_ratio),
                {{"ratio_to_gemm", gemm_ratio}});

  shape.density = knobs_.density.value_or(0);
  if (shape.density > 0 && shape.density < 1) {
    step_(fmt::format("sparse attention over {} tokens", length));
    const AttentionWork sparse(shape, context_);
    const Comparison to_dense = in_turn(sparse, [&] { dense.run(); });
    const double cost = 1 / (to_dense.ratio * sparse.density());
    add_attention("attention, sparse", length, sparse, to_dense.work,
                  fmt::format("{:.2f} of density x dense", cost),
                  {{"time_over_density_x_dense", cost}});
  }
  for (const std::string& method : methods) add_selection(method, length, to_gemm.work.median_ms);

  shape = shape_;
  shape.q_len = 1;
  shape.kv_len = length;
  step_(fmt::format("decode behind {} tokens", length));
  const AttentionWork decode(shape, context_);
  const Comparison to_copy = in_turn(decode, [&] { copy_.run(); });
  const double rate = giga_per_s(decode.kv_bytes(), to_copy.work.median_ms);
  const double copy_ratio = to_copy.ratio * decode.kv_bytes() / copy_.bytes();
  rows_.push_back({"decode",
                   std::string(decode.backend()),
                   length,
                   to_copy.work,
                   1,
                   fmt::format("{:.1f} GB/s", rate),
                   fmt::format("{:.2f} of copy", copy_ratio),
                   {{"kv_gb_per_s", rate}, {"ratio_to_copy", copy_ratio}}});
}

Comparison CpuKernels::in_turn(const AttentionWork& work,
                               const std::function<void()>& yardstick) const {
  return time_in_turn([&] { work.run(); }, yardstick, min_seconds_);
}

void CpuKernels::add_attention(const std::string& kernel, int64_t length, const AttentionWork& work,
                               const Timing& timing, const std::string& against,
                               nlohmann::json figures) {
  const double gflops = giga_per_s(work.flops(), timing.median_ms);
  figures["gflops"] = gflops;
  rows_.push_back({kernel, std::string(work.backend()), length, timing, work.density(),
                   fmt::format("{:.0f} GFLOP/s", gflops), against, figures});
}

void CpuKernels::add_selection(const std::string& method, int64_t length, double dense_ms) {
  KernelShape shape = shape_;
  shape.q_len = shape.kv_len = length;
  step_(fmt::format("{} over {} tokens", method, length));
  const auto settings = attention_settings(method, knobs_);
  SelectionWork work(shape, *settings.selector, context_);
  const SelectionMeasurement measured = measure_selection(
      work, [this](const auto& body) { return time_repeatedly(body, min_seconds_); });
  const double share = measured.selection.median_ms / dense_ms;
  rows_.push_back(
      {"selection: " + method,
       "",
       length,
       measured.selection,
       measured.lists.density,
       fmt::format("{} of lists", format_bytes(static_cast<double>(measured.lists.bytes))),
       fmt::format("{} of dense attention", format_percent(share)),
       {{"share_of_dense_attention", share},
        {"statistics_ms", measured.statistics.median_ms},
        {"list_bytes", measured.lists.bytes}}});
}

}  // namespace fovea::cli
