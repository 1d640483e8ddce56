#include "apps/cli/kernels_gpu.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "apps/cli/attention_options.h"
#include "apps/cli/table.h"
#include "fovea/base/error.h"
#include "fovea/tensor/device_memory.h"

namespace fovea::cli {
namespace {

constexpr int64_t k16K = 16384, k32K = 32768, k128K = 131072, k1M = 1048576;
constexpr double kDensity = 0.0534;  // what comparisons of sparse prefill are made at

KernelShape prompt(int64_t length) {
  KernelShape shape;
  shape.q_len = shape.kv_len = length;
  shape.num_q_heads = 32;
  shape.num_kv_heads = 4;
  shape.head_dim = 128;
  shape.page_size = 0;
  return shape;
}

std::string heads_text(const KernelShape& shape) {
  return fmt::format("{}/{} heads of {}", shape.num_q_heads, shape.num_kv_heads, shape.head_dim);
}

SelectorSettings budget_settings(const std::string& method, double density = kDensity) {
  AttentionOptions knobs;
  knobs.density = static_cast<float>(density);
  return *attention_settings(method, knobs).selector;
}

}  // namespace

std::vector<std::string> gpu_case_names() {
  return {"dense", "head_dim", "window", "paged", "sparse", "selection", "whole", "decode"};
}

GpuKernels::GpuKernels(Device device, GpuRegime regime,
                       std::function<void(const std::string&)> step)
    : stream_(make_stream(device)),
      context_{.device = device, .num_threads = 0, .stream = stream_.get()},
      regime_(regime),
      step_(std::move(step)) {
  step_("the card's own rates");
  gemm_ = std::make_unique<GemmWork>(DType::kBF16, context_);
  gemm_gflops();
  const CopyWork copy(context_);
  const Timing copying = time_on_gpu([&] { copy.run(); }, regime_, context_, /*as_graph=*/false);
  rates_.copy_gb_per_s = giga_per_s(copy.bytes(), copying.median_ms);
}

void GpuKernels::measure(const std::string& name) {
  if (name == "dense") return dense();
  if (name == "head_dim") return head_dims();
  if (name == "window") return windows();
  if (name == "paged") return pages();
  if (name == "sparse") return sparse();
  if (name == "selection") return selections();
  if (name == "whole") return whole();
  check_argument(name == "decode", "--cases takes {}, not \"{}\"",
                 fmt::join(gpu_case_names(), ", "), name);
  decode();
}

void GpuKernels::dense() {
  for (const int64_t length : {k16K, k32K, k128K}) {
    step_(fmt::format("attention over {} tokens", length));
    const AttentionWork work(prompt(length), context_);
    KernelRow& row = add_dense("dense", length, work);
    dense_ms_.emplace_back(length, row.timing.median_ms);
    set_target(row, {0.97, 1.03});
  }
}

void GpuKernels::head_dims() {
  for (const auto& [q_heads, kv_heads, head_dim] :
       {std::array{9, 3, 64}, {64, 8, 64}, {16, 4, 256}}) {
    KernelShape shape = prompt(k32K);
    shape.num_q_heads = q_heads;
    shape.num_kv_heads = kv_heads;
    shape.head_dim = head_dim;
    step_("attention, " + heads_text(shape));
    const AttentionWork work(shape, context_);
    add_dense("dense, " + heads_text(shape), k32K, work);
  }
}

void GpuKernels::windows() {
  for (const int64_t head_dim : {64, 128}) {
    for (const int64_t window : {128, 1024}) {
      KernelShape shape = prompt(k32K);
      shape.head_dim = head_dim;
      shape.window_left = window;
      step_(fmt::format("a window of {}", window));
      const AttentionWork work(shape, context_);
      const Timing timing = time([&] { work.run(); });
      KernelRow& row =
          add(fmt::format("window {}, {}", window, heads_text(shape)), k32K, work, timing);
      compare(row, "useful_tflops", giga_per_s(work.flops(), timing.median_ms) / 1e3,
              " TFLOP/s useful", head_dim == 64 ? Target{350, 450} : Target{400, 520});
    }
  }
}

void GpuKernels::pages() {
  for (const int64_t page_size : {64, 128, 256}) {
    KernelShape shape = prompt(k32K);
    shape.page_size = page_size;
    const double contiguous_ms = dense_ms(k32K);
    step_(fmt::format("pages of {}", page_size));
    const AttentionWork work(shape, context_);
    const Timing timing = time([&] { work.run(); });
    KernelRow& row = add(fmt::format("pages of {}", page_size), k32K, work, timing);
    compare(row, "ratio_to_contiguous", contiguous_ms / timing.median_ms, " of contiguous",
            {0.95, 0.99});
    row.figures["as_engine"] = page_size == SelectorSettings{}.block_size;
  }
}

void GpuKernels::sparse() {
  for (const double density : {0.03, kDensity, 0.1, 0.25, 0.5}) {
    add_sparse(k32K, density, false, {0.82, 0.92});
  }
  for (const double density : {0.03, kDensity, 0.1, 0.25, 0.5}) {
    add_sparse(k128K, density, false, {0.90, 0.97});
  }
  add_sparse(k128K, kDensity, true, {0.75, 0.84});
}

void GpuKernels::add_sparse(int64_t length, double density, bool has_periphery, Target target) {
  const double whole_ms = dense_ms(length);
  KernelShape shape = prompt(length);
  shape.density = density;
  shape.has_periphery = has_periphery;
  step_(fmt::format("{} of {} tokens", format_percent(density), length));
  const AttentionWork work(shape, context_);
  const Timing timing = time([&] { work.run(); });
  KernelRow& row = add(has_periphery ? "sparse, periphery" : "sparse", length, work, timing);
  compare(row, "efficiency", work.density() * whole_ms / timing.median_ms,
          " density x dense / time", target);
}

void GpuKernels::selections() {
  struct Case {
    const char* method;
    Target select, both;  // in ms, statistics included in `both`; 0: none
  };
  for (const Case& c : {Case{"rescue", {2.4, 1.2}, {}},
                        {"centroid", {}, {}},
                        {"witness:1", {}, {2.6, 1.5}},
                        {"witness:4", {}, {5.5, 2.5}}}) {
    step_(fmt::format("{} over {} tokens", c.method, k128K));
    SelectionWork work(prompt(k128K), budget_settings(c.method), context_);
    const SelectionMeasurement measured =
        measure_selection(work, [this](const auto& body) { return time(body); });
    const double both_ms = measured.statistics.median_ms + measured.selection.median_ms;
    rows_.push_back(
        {fmt::format("selection: {}", c.method),
         "",
         k128K,
         measured.selection,
         measured.lists.density,
         fmt::format("{} of lists", format_bytes(static_cast<double>(measured.lists.bytes))),
         "",
         {{"statistics_ms", measured.statistics.median_ms}, {"list_bytes", measured.lists.bytes}}});
    KernelRow& row = rows_.back();
    if (c.select.floor > 0) {
      compare(row, "selection_ms", measured.selection.median_ms, " ms", c.select);
    } else if (c.both.floor > 0) {
      compare(row, "statistics_and_selection_ms", both_ms, " ms with statistics", c.both);
    } else {
      compare(row, "selection_ms", measured.selection.median_ms, " ms");
    }
  }
  add_scratch(k128K, kDensity, {8, 4});
  add_scratch(k1M, 0.03, {160, 128});
}

void GpuKernels::add_scratch(int64_t length, double density, Target megabytes) {
  step_(fmt::format("memory of a selection over {} tokens", length));
  SelectionWork work(prompt(length), budget_settings("rescue", density), context_);
  const SelectionWork::Lists lists = work.measure_lists();
  const int64_t scratch = scratch_bytes_on_gpu([&] { work.select(); }, context_);
  work.measure_lists();
  const Timing timing = time([&] { work.select(); });
  rows_.push_back({"selection: rescue, memory",
                   "",
                   length,
                   timing,
                   lists.density,
                   fmt::format("{} of lists", format_bytes(static_cast<double>(lists.bytes))),
                   "",
                   {{"list_bytes", lists.bytes}, {"scratch_bytes", scratch}}});
  compare(rows_.back(), "megabytes", static_cast<double>(scratch + lists.bytes) / 1e6,
          " MB of scratch and lists", megabytes);
}

void GpuKernels::whole() {
  const AttentionWork dense(prompt(k128K), context_);
  for (const char* method : {"rescue", "witness:4"}) {
    SelectionWork work(prompt(k128K), budget_settings(method), context_);
    const SelectionWork::Lists lists = work.measure_lists();
    for (const bool has_periphery : {false, true}) {
      step_(fmt::format("statistics, {} and attention", method));
      work.measure_lists();
      const Timing timing = time([&] {
        work.compute_statistics();
        work.select();
        work.attend(has_periphery);
      });
      rows_.push_back({fmt::format("whole: {}{}", method, has_periphery ? ", periphery" : ""),
                       "",
                       k128K,
                       timing,
                       lists.density,
                       fmt::format("{:.1f}x own dense", dense_ms(k128K) / timing.median_ms),
                       "",
                       {{"ratio_to_own_dense", dense_ms(k128K) / timing.median_ms}}});
      KernelRow& row = rows_.back();
      const double ratio = dense.flops() / gemm_gflops() / 1e6 / timing.median_ms;
      if (std::string(method) == "rescue") {
        compare(row, "ratio_to_dense_at_gemm", ratio, "x dense at GEMM rate",
                has_periphery ? Target{12, 15} : Target{14.5, 17});
      } else {
        compare(row, "ratio_to_dense_at_gemm", ratio, "x dense at GEMM rate");
      }
    }
  }
}

void GpuKernels::decode() {
  for (const int64_t length : {int64_t{4096}, k32K, k128K}) add_decode(1, length);
  add_decode(16, k32K);
}

void GpuKernels::add_decode(int64_t batch_size, int64_t length) {
  KernelShape shape = prompt(length);
  shape.q_len = 1;
  shape.batch_size = batch_size;
  step_(fmt::format("decode of {} behind {} tokens", batch_size, length));
  // Several sets of K and V in turn, so that none waits in the L2 cache.
  constexpr double kBytesInTurn = 3e8;
  std::vector<std::unique_ptr<AttentionWork>> sets;
  do {
    sets.push_back(std::make_unique<AttentionWork>(shape, context_));
  } while (sets.size() < 2 ||
           sets.front()->kv_bytes() * static_cast<double>(sets.size()) < kBytesInTurn);
  Timing timing = time([&] {
    for (const auto& work : sets) work->run();
  });
  for (double* ms : {&timing.median_ms, &timing.min_ms, &timing.max_ms}) {
    *ms /= static_cast<double>(sets.size());
  }
  const AttentionWork& work = *sets.front();
  const double rate = giga_per_s(work.kv_bytes(), timing.median_ms);
  KernelRow& row = add(fmt::format("decode, batch {}", batch_size), length, work, timing);
  row.rate = fmt::format("{:.0f} GB/s of K and V", rate);
  row.figures = {{"kv_gb_per_s", rate}};
  if (batch_size == 16) {
    compare(row, "ratio_to_copy", rate / rates_.copy_gb_per_s, " of copy", {0.97, 1.02});
  } else {
    compare(row, "ratio_to_copy", rate / rates_.copy_gb_per_s, " of copy");
  }
}

double GpuKernels::gemm_gflops() {
  const double rate = giga_per_s(gemm_->flops(), time([this] { gemm_->run(); }).median_ms);
  rates_.gemm_gflops = std::max(rates_.gemm_gflops, rate);
  return rate;
}

KernelRow& GpuKernels::add_dense(const std::string& kernel, int64_t length,
                                 const AttentionWork& work) {
  const Timing timing = time([&] { work.run(); });
  const double gemm = gemm_gflops();
  KernelRow& row = add(kernel, length, work, timing);
  compare(row, "ratio_to_gemm", giga_per_s(work.flops(), timing.median_ms) / gemm, " of GEMM");
  row.figures["gemm_gflops"] = gemm;
  return row;
}

Timing GpuKernels::time(const std::function<void()>& body) const {
  return time_on_gpu(body, regime_, context_);
}

double GpuKernels::dense_ms(int64_t length) {
  for (const auto& [known, ms] : dense_ms_) {
    if (known == length) return ms;
  }
  step_(fmt::format("attention over {} tokens", length));
  const AttentionWork work(prompt(length), context_);
  dense_ms_.emplace_back(length, time([&] { work.run(); }).median_ms);
  return dense_ms_.back().second;
}

KernelRow& GpuKernels::add(const std::string& kernel, int64_t length, const AttentionWork& work,
                           const Timing& timing) {
  const double gflops = giga_per_s(work.flops(), timing.median_ms);
  rows_.push_back({kernel,
                   std::string(work.backend()),
                   length,
                   timing,
                   work.density(),
                   fmt::format("{:.0f} TFLOP/s", gflops / 1e3),
                   "",
                   {{"gflops", gflops}}});
  return rows_.back();
}

void GpuKernels::compare(KernelRow& row, const char* name, double figure, const char* unit) {
  row.against = fmt::format("{:.{}f}{}", figure, figure < 100 ? 2 : 0, unit);
  row.figures[name] = figure;
}

void GpuKernels::compare(KernelRow& row, const char* name, double figure, const char* unit,
                         Target target) {
  compare(row, name, figure, unit);
  set_target(row, target);
}

void GpuKernels::set_target(KernelRow& row, Target target) {
  row.target = fmt::format("{} / {}", target.floor, target.goal);
  row.figures["floor"] = target.floor;
  row.figures["goal"] = target.goal;
}

}  // namespace fovea::cli
