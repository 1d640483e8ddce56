// attention_bench [dense|sparse|decode ...] [--max-len N] [--json FILE]: every figure beside what
// the machine does in the same second: dense beside a matrix product, sparse beside dense, decode
// beside a copy. Without a name, all three, up to 32,768 keys.
#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "benchmarks/kernel_bench.h"
#include "fovea/base/cpu_features.h"
#include "fovea/base/parallel.h"

namespace {

using fovea::AttentionWork;
using fovea::Comparison;
using fovea::Context;
using fovea::CopyWork;
using fovea::DType;
using fovea::GemmWork;
using fovea::giga_per_s;
using fovea::KernelShape;
using nlohmann::json;

// Query and KV heads of small models with these head widths.
KernelShape shape_of(DType dtype, int64_t head_dim) {
  KernelShape shape;
  shape.dtype = dtype;
  shape.head_dim = head_dim;
  shape.num_q_heads = head_dim == 64 ? 3 : 2;
  return shape;
}

json to_json(const char* kind, const KernelShape& shape, const AttentionWork& work,
             const Comparison& comparison) {
  const fovea::Timing& timing = comparison.work;
  return {{"kind", kind},
          {"backend", work.backend()},
          {"dtype", fovea::dtype_name(shape.dtype)},
          {"q_len", shape.q_len},
          {"kv_len", shape.kv_len},
          {"head_dim", shape.head_dim},
          {"num_q_heads", shape.num_q_heads},
          {"num_kv_heads", shape.num_kv_heads},
          {"density", work.density()},
          {"periphery", shape.has_periphery},
          {"median_ms", timing.median_ms},
          {"min_ms", timing.min_ms},
          {"max_ms", timing.max_ms},
          {"rounds", timing.repetitions},
          {"yardstick_ms", comparison.yardstick.median_ms}};
}

// "0.61 (0.58 - 0.66)": the median of the rounds and their quartiles.
std::string spread_text(double median, double low, double high) {
  return fmt::format("{:.2f} ({:.2f} - {:.2f})", median, low, high);
}

class Bench {
 public:
  explicit Bench(int64_t max_len)
      : max_len_(max_len),
        copy_(context_),
        gemm_bf16_(DType::kBF16, context_),
        gemm_f32_(DType::kF32, context_) {
    report_["machine"] = {{"processor", fovea::cpu_model_name()},
                          {"threads", fovea::resolve_num_threads(context_)},
                          {"avx512_bf16", fovea::cpu_features().avx512_bf16},
                          {"amx_bf16", fovea::cpu_features().amx_bf16},
                          {"compiler", __VERSION__}};
    report_["results"] = json::array();
  }

  void dense() {
    for (const DType dtype : {DType::kBF16, DType::kF32}) {
      const GemmWork& gemm = dtype == DType::kBF16 ? gemm_bf16_ : gemm_f32_;
      for (const int64_t head_dim : {64, 128}) {
        for (int64_t n = 1024; n <= max_len_; n *= 2) {
          KernelShape shape = shape_of(dtype, head_dim);
          shape.q_len = shape.kv_len = n;
          const AttentionWork work(shape, context_);
          const Comparison comparison =
              fovea::time_in_turn([&] { work.run(); }, [&] { gemm.run(); }, 1);
          // Of rates, not of times.
          const double scale = work.flops() / gemm.flops();
          const double gflops = giga_per_s(work.flops(), comparison.work.median_ms);
          const double gemm_gflops = giga_per_s(gemm.flops(), comparison.yardstick.median_ms);
          json result = to_json("dense", shape, work, comparison);
          result["gflops"] = gflops;
          result["gemm_gflops"] = gemm_gflops;
          result["ratio_to_gemm"] = {{"median", scale * comparison.ratio},
                                     {"low", scale * comparison.ratio_low},
                                     {"high", scale * comparison.ratio_high}};
          report_["results"].push_back(result);
          fmt::print(
              "dense  {:<15} {:<4} head_dim {:3} n {:6}: {:9.2f} ms {:6.0f} GFLOP/s, gemm {:6.0f}, "
              "ratio {}\n",
              work.backend(), fovea::dtype_name(dtype), head_dim, n, comparison.work.median_ms,
              gflops, gemm_gflops,
              spread_text(scale * comparison.ratio, scale * comparison.ratio_low,
                          scale * comparison.ratio_high));
        }
      }
    }
  }

  void sparse() {
    for (const int64_t head_dim : {64, 128}) {
      for (int64_t n = 8192; n <= max_len_; n *= 2) {
        KernelShape shape = shape_of(DType::kBF16, head_dim);
        shape.q_len = shape.kv_len = n;
        const AttentionWork dense(shape, context_);
        for (const double density : {0.03, 0.05, 0.10, 0.25, 0.50}) {
          for (const bool has_periphery : {false, true}) {
            shape.density = density;
            shape.has_periphery = has_periphery;
            const AttentionWork work(shape, context_);
            const Comparison comparison =
                fovea::time_in_turn([&] { work.run(); }, [&] { dense.run(); }, 0.7);
            // 1 is perfect, 1.2 the bound that CPU kernels keep from 5 % on, without periphery.
            const auto cost = [&](double ratio) { return 1 / (ratio * work.density()); };
            json result = to_json("sparse", shape, work, comparison);
            result["time_over_density_x_dense"] = {{"median", cost(comparison.ratio)},
                                                   {"low", cost(comparison.ratio_high)},
                                                   {"high", cost(comparison.ratio_low)}};
            report_["results"].push_back(result);
            fmt::print(
                "sparse {:<15} head_dim {:3} n {:6} density {:.3f}{}: {:9.2f} ms, {} of density x "
                "dense\n",
                work.backend(), head_dim, n, work.density(),
                has_periphery ? " periphery" : "          ", comparison.work.median_ms,
                spread_text(cost(comparison.ratio), cost(comparison.ratio_high),
                            cost(comparison.ratio_low)));
          }
        }
      }
    }
  }

  void decode() {
    for (const DType dtype : {DType::kBF16, DType::kF32}) {
      for (const int64_t head_dim : {64, 128}) {
        for (int64_t n = 256; n <= max_len_; n *= 2) {
          KernelShape shape = shape_of(dtype, head_dim);
          shape.q_len = 1;
          shape.kv_len = n;
          shape.num_kv_heads = 4;
          shape.num_q_heads *= 4;
          const AttentionWork work(shape, context_);
          const Comparison comparison =
              fovea::time_in_turn([&] { work.run(); }, [&] { copy_.run(); }, 0.5);
          const double scale = work.kv_bytes() / copy_.bytes();
          const double rate = giga_per_s(work.kv_bytes(), comparison.work.median_ms);
          json result = to_json("decode", shape, work, comparison);
          result["kv_gb_per_s"] = rate;
          result["ratio_to_copy"] = {{"median", scale * comparison.ratio},
                                     {"low", scale * comparison.ratio_low},
                                     {"high", scale * comparison.ratio_high}};
          report_["results"].push_back(result);
          fmt::print(
              "decode {:<15} {:<4} head_dim {:3} kv_len {:6}: {:8.3f} ms {:6.1f} GB/s, {} of "
              "copy\n",
              work.backend(), fovea::dtype_name(dtype), head_dim, n, comparison.work.median_ms,
              rate,
              spread_text(scale * comparison.ratio, scale * comparison.ratio_low,
                          scale * comparison.ratio_high));
        }
      }
    }
  }

  const json& report() const { return report_; }

 private:
  int64_t max_len_;
  Context context_;
  CopyWork copy_;
  GemmWork gemm_bf16_, gemm_f32_;
  json report_;
};

int run(const std::vector<std::string>& arguments) {
  std::string json_path;
  int64_t max_len = 32768;
  std::vector<std::string> names;
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i] == "--json" && i + 1 < arguments.size()) {
      json_path = arguments[++i];
    } else if (arguments[i] == "--max-len" && i + 1 < arguments.size()) {
      max_len = std::atoll(arguments[++i].c_str());
    } else if (arguments[i] == "dense" || arguments[i] == "sparse" || arguments[i] == "decode") {
      names.push_back(arguments[i]);
    } else {
      std::fprintf(
          stderr, "usage: attention_bench [dense|sparse|decode ...] [--max-len N] [--json FILE]\n");
      return 2;
    }
  }
  if (names.empty()) names = {"dense", "sparse", "decode"};
  Bench bench(max_len);
  for (const std::string& name : names) {
    if (name == "dense") bench.dense();
    if (name == "sparse") bench.sparse();
    if (name == "decode") bench.decode();
  }
  if (!json_path.empty()) {
    std::ofstream file(json_path);
    file << bench.report().dump(1) << "\n";
    if (!file) {
      std::fprintf(stderr, "cannot write '%s'\n", json_path.c_str());
      return 2;
    }
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run({argv + 1, argv + argc});
  } catch (const std::exception& error) {
    std::fprintf(stderr, "attention_bench: %s\n", error.what());
    return 1;
  }
}
