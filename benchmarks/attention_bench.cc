// attention_bench [dense|sparse|decode ...] [--json FILE]: every figure beside the machine's own
// GEMM and copy rates of the same run. Without a name, all three.
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

using fovea::Context;
using fovea::DType;
using fovea::KernelMeasurement;
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

json to_json(const char* kind, const KernelShape& shape, const KernelMeasurement& measured) {
  return {{"kind", kind},
          {"backend", measured.backend},
          {"dtype", fovea::dtype_name(shape.dtype)},
          {"q_len", shape.q_len},
          {"kv_len", shape.kv_len},
          {"head_dim", shape.head_dim},
          {"num_q_heads", shape.num_q_heads},
          {"num_kv_heads", shape.num_kv_heads},
          {"density", measured.density},
          {"periphery", shape.has_periphery},
          {"median_ms", measured.timing.median_ms},
          {"min_ms", measured.timing.min_ms},
          {"max_ms", measured.timing.max_ms},
          {"repetitions", measured.timing.repetitions}};
}

class Bench {
 public:
  Bench() {
    report_["machine"] = {{"processor", fovea::cpu_model_name()},
                          {"threads", fovea::resolve_num_threads(context_)},
                          {"avx512_bf16", fovea::cpu_features().avx512_bf16},
                          {"amx_bf16", fovea::cpu_features().amx_bf16},
                          {"compiler", __VERSION__}};
    copy_gb_per_s_ = fovea::measure_copy_gb_per_s(context_);
    gemm_bf16_ = fovea::measure_gemm_gflops(DType::kBF16, context_);
    gemm_f32_ = fovea::measure_gemm_gflops(DType::kF32, context_);
    report_["copy_gb_per_s"] = copy_gb_per_s_;
    report_["gemm_gflops"] = {{"bf16", gemm_bf16_}, {"f32", gemm_f32_}};
    report_["results"] = json::array();
    std::printf("copy %.1f GB/s, gemm bf16 %.0f GFLOP/s, f32 %.0f GFLOP/s\n", copy_gb_per_s_,
                gemm_bf16_, gemm_f32_);
  }

  void dense() {
    for (const DType dtype : {DType::kBF16, DType::kF32}) {
      for (const int64_t head_dim : {64, 128}) {
        for (int64_t n = 1024; n <= 32768; n *= 2) {
          KernelShape shape = shape_of(dtype, head_dim);
          shape.q_len = shape.kv_len = n;
          const KernelMeasurement measured = fovea::measure_attention(shape, context_, 0.3);
          const double gemm = dtype == DType::kBF16 ? gemm_bf16_ : gemm_f32_;
          json result = to_json("dense", shape, measured);
          result["gflops"] = measured.gflops();
          result["ratio_to_gemm"] = measured.gflops() / gemm;
          report_["results"].push_back(result);
          std::printf(
              "dense  %-15s %-4s head_dim %3ld n %6ld: %9.2f ms %7.0f GFLOP/s, %.2f of gemm\n",
              measured.backend.c_str(), dtype_text(dtype), head_dim, n, measured.timing.median_ms,
              measured.gflops(), measured.gflops() / gemm);
        }
      }
    }
  }

  void sparse() {
    for (const int64_t head_dim : {64, 128}) {
      for (int64_t n = 8192; n <= 32768; n *= 2) {
        KernelShape shape = shape_of(DType::kBF16, head_dim);
        shape.q_len = shape.kv_len = n;
        const double dense_ms = fovea::measure_attention(shape, context_, 0.3).timing.median_ms;
        for (const double density : {0.03, 0.05, 0.10, 0.25, 0.50}) {
          for (const bool has_periphery : {false, true}) {
            shape.density = density;
            shape.has_periphery = has_periphery;
            const KernelMeasurement measured = fovea::measure_attention(shape, context_, 0.2);
            // 1 is perfect, 1.2 the bound that CPU kernels keep from 5 % on, without periphery.
            const double cost = measured.timing.median_ms / (measured.density * dense_ms);
            json result = to_json("sparse", shape, measured);
            result["dense_ms"] = dense_ms;
            result["time_over_density_x_dense"] = cost;
            report_["results"].push_back(result);
            std::printf(
                "sparse %-15s head_dim %3ld n %6ld density %.3f%s: %9.2f ms, %.2f of density x "
                "dense\n",
                measured.backend.c_str(), head_dim, n, measured.density,
                has_periphery ? " periphery" : "          ", measured.timing.median_ms, cost);
          }
        }
      }
    }
  }

  void decode() {
    for (const DType dtype : {DType::kBF16, DType::kF32}) {
      for (const int64_t head_dim : {64, 128}) {
        for (int64_t n = 256; n <= 32768; n *= 2) {
          KernelShape shape = shape_of(dtype, head_dim);
          shape.q_len = 1;
          shape.kv_len = n;
          shape.num_kv_heads = 4;
          shape.num_q_heads *= 4;
          const KernelMeasurement measured = fovea::measure_attention(shape, context_, 0.1);
          json result = to_json("decode", shape, measured);
          result["kv_gb_per_s"] = measured.kv_gb_per_s();
          result["ratio_to_copy"] = measured.kv_gb_per_s() / copy_gb_per_s_;
          report_["results"].push_back(result);
          std::printf(
              "decode %-15s %-4s head_dim %3ld kv_len %6ld: %8.3f ms %6.1f GB/s, %.2f of copy\n",
              measured.backend.c_str(), dtype_text(dtype), head_dim, n, measured.timing.median_ms,
              measured.kv_gb_per_s(), measured.kv_gb_per_s() / copy_gb_per_s_);
        }
      }
    }
  }

  const json& report() const { return report_; }

 private:
  static const char* dtype_text(DType dtype) { return fovea::dtype_name(dtype).data(); }

  Context context_;
  double copy_gb_per_s_ = 0, gemm_bf16_ = 0, gemm_f32_ = 0;
  json report_;
};

int run(const std::vector<std::string>& arguments) {
  std::string json_path;
  std::vector<std::string> names;
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i] == "--json" && i + 1 < arguments.size()) {
      json_path = arguments[++i];
    } else if (arguments[i] == "dense" || arguments[i] == "sparse" || arguments[i] == "decode") {
      names.push_back(arguments[i]);
    } else {
      std::fprintf(stderr, "usage: attention_bench [dense|sparse|decode ...] [--json FILE]\n");
      return 2;
    }
  }
  if (names.empty()) names = {"dense", "sparse", "decode"};
  Bench bench;
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
