// Speed of a GPU's operations on rows at the sizes of real models, against the rate of a large copy
// (operations bound by memory) and of an 8192^3 product in the same run (products).
//
//   cuda_ops [--only TEXT] [ROWS ...]      only lines whose name has TEXT; default 4096 16384
#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "fovea/base/error.h"
#include "fovea/ops/row_ops.h"
#include "fovea/tensor/bfloat16.h"
#include "fovea/tensor/cuda/check.h"
#include "fovea/tensor/device_memory.h"
#include "fovea/tensor/slices.h"

namespace {

using fovea::DType;
using fovea::ExpertWeights;
using fovea::MoeTask;
using fovea::PackedWeights;
using fovea::QkvTask;
using fovea::RopeTable;
using fovea::RowOps;
using fovea::Tensor;
using fovea::TensorView;
using fovea::cuda::check_cuda;

const fovea::Context kGpu{.device = {fovea::DeviceType::kCuda, 0}};

/// Normal values: products of zeros run faster than any model's.
Tensor random_tensor(DType dtype, std::initializer_list<int64_t> shape) {
  constexpr int64_t kPattern = int64_t{1} << 20;
  static const Tensor pattern_f32 = [] {
    Tensor values(DType::kF32, {kPattern});
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    for (int64_t i = 0; i < kPattern; ++i) values.as<float>()[i] = normal(random);
    return values;
  }();
  static const Tensor pattern_bf16 = [] {
    Tensor values(DType::kBF16, {kPattern});
    for (int64_t i = 0; i < kPattern; ++i) {
      values.as<fovea::BFloat16>()[i] = fovea::to_bfloat16(pattern_f32.as<float>()[i]);
    }
    return values;
  }();
  Tensor tensor(dtype, shape, kGpu.device);
  const TensorView& pattern = (dtype == DType::kF32 ? pattern_f32 : pattern_bf16).view();
  const TensorView whole =
      make_view(tensor.view().data, dtype, {tensor.view().num_elements()}, kGpu.device);
  for (int64_t at = 0; at < whole.shape[0]; at += kPattern) {
    const int64_t count = std::min(kPattern, whole.shape[0] - at);
    copy_tensor(rows_of(pattern, 0, count), rows_of(whole, at, count), kGpu);
  }
  return tensor;
}

/// Median over batches of calls, in microseconds a call. `run` gets the number of the call.
double time_us(const std::function<void(int)>& run) {
  constexpr int kBatches = 7;
  cudaEvent_t begin = nullptr, end = nullptr;
  check_cuda(cudaEventCreate(&begin), "making an event");
  check_cuda(cudaEventCreate(&end), "making an event");
  const auto batch_us = [&](int calls) {
    check_cuda(cudaEventRecord(begin, nullptr), "timing");
    for (int i = 0; i < calls; ++i) run(i);
    check_cuda(cudaEventRecord(end, nullptr), "timing");
    check_cuda(cudaEventSynchronize(end), "timing");
    float ms = 0;
    check_cuda(cudaEventElapsedTime(&ms, begin, end), "timing");
    return 1e3 * static_cast<double>(ms) / calls;
  };
  batch_us(2);
  const int calls = std::clamp(static_cast<int>(8e3 / batch_us(2)), 2, 200);  // 8 ms a batch
  std::vector<double> times;
  for (int i = 0; i < kBatches; ++i) times.push_back(batch_us(calls));
  std::nth_element(times.begin(), times.begin() + kBatches / 2, times.end());
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  return times[kBatches / 2];
}

/// Of --only.
std::string wanted_text;
bool is_wanted(const std::string& name) { return name.find(wanted_text) != std::string::npos; }

struct Rates {
  double copy_tb_s, gemm_tflop_s;
};

void show_bytes(const Rates& rates, const std::string& name, double us, double bytes) {
  const double tb_s = bytes / us / 1e6;
  fmt::print("{:<44} {:9.1f} us {:6.2f} TB/s {:5.2f} of copy\n", name, us, tb_s,
             tb_s / rates.copy_tb_s);
}

struct Product {
  const char* name;
  int64_t out_features, in_features;
  bool add;  // onto the residual in f32, else bf16
};
struct Model {
  const char* name;
  int64_t dim, num_q_heads, num_kv_heads, mlp_dim;
  bool has_bias, has_norms;
  std::vector<Product> products;
  int64_t num_experts = 0, top_k = 0;  // experts have mlp_dim each
};
const std::vector<Model> kModels = {
    {"Qwen2.5-7B",
     3584,
     28,
     4,
     18944,
     true,
     false,
     {{"qkv", 4608, 3584, false},
      {"attention_out", 3584, 3584, true},
      {"gate_up", 37888, 3584, false},
      {"down", 3584, 18944, true}}},
    {"Qwen3-30B-A3B",
     2048,
     32,
     4,
     768,
     false,
     true,
     {{"qkv", 5120, 2048, false}, {"attention_out", 2048, 4096, true}},
     128,
     8},
};

double product_us(RowOps& ops, const Product& product, int64_t rows, int num_copies,
                  bool is_f8 = false) {
  const Tensor in = random_tensor(DType::kBF16, {rows, product.in_features});
  const Tensor out =
      random_tensor(product.add ? DType::kF32 : DType::kBF16, {rows, product.out_features});
  std::vector<PackedWeights> weights;  // several where one would stay in the L2 cache
  for (int i = 0; i < num_copies; ++i) {
    weights.emplace_back(random_tensor(DType::kBF16, {product.out_features, product.in_features}));
    if (is_f8) weights.back() = weights.back().quantized(kGpu);
  }
  return time_us([&](int call) {
    const PackedWeights& matrix = weights[static_cast<size_t>(call % num_copies)];
    if (product.add) {
      ops.matmul_add(in.view(), matrix, out.view());
    } else {
      ops.matmul(in.view(), matrix, out.view());
    }
  });
}

void prefill_products(RowOps& ops, const Rates& rates, const Model& model, int64_t rows,
                      bool is_f8) {
  double total_us = 0, total_flops = 0;
  for (const Product& product : model.products) {
    const std::string name =
        fmt::format("{} {} {} rows{}", model.name, product.name, rows, is_f8 ? " f8" : "");
    if (!is_wanted(name)) continue;
    const double us = product_us(ops, product, rows, 1, is_f8);
    const double flops = 2.0 * static_cast<double>(rows * product.out_features) *
                         static_cast<double>(product.in_features);
    fmt::print("{:<44} {:9.1f} us {:6.0f} TFLOP/s {:5.2f} of GEMM\n", name, us, flops / us / 1e6,
               flops / us / 1e6 / rates.gemm_tflop_s);
    total_us += us;
    total_flops += flops;
  }
  if (total_us == 0) return;
  fmt::print("{:<44} {:9.1f} us {:6.0f} TFLOP/s {:5.2f} of GEMM\n", "  all together", total_us,
             total_flops / total_us / 1e6, total_flops / total_us / 1e6 / rates.gemm_tflop_s);
}

void decode_products(RowOps& ops, const Rates& rates, const Model& model, int64_t rows) {
  std::vector<Product> products = model.products;
  products.push_back({"logits", 151936, model.dim, false});
  for (const Product& product : products) {
    const std::string name = fmt::format("{} {} {} rows", model.name, product.name, rows);
    if (!is_wanted(name)) continue;
    const double bytes = 2.0 * static_cast<double>(product.out_features * product.in_features);
    const int num_copies = std::clamp(static_cast<int>(5e8 / bytes), 1, 32);
    show_bytes(rates, name, product_us(ops, product, rows, num_copies), bytes);
  }
}

/// Layers of a decode step without attention, one after another, against the bytes of their
/// weights.
void decode_layers(RowOps& ops, const Rates& rates, const Model& model) {
  constexpr int kLayers = 4;
  constexpr int64_t kHeadDim = 128, kPageSize = 128;
  const std::string name = fmt::format("{} {} layers, no attention", model.name, kLayers);
  if (!is_wanted(name)) return;
  struct Layer {
    PackedWeights qkv, attention_out, gate_up, down;
  };
  const auto matrix = [](int64_t out_features, int64_t in_features) {
    return PackedWeights(random_tensor(DType::kBF16, {out_features, in_features}));
  };
  const int64_t q_dim = model.num_q_heads * kHeadDim;
  const int64_t qkv_dim = q_dim + 2 * model.num_kv_heads * kHeadDim;
  std::vector<Layer> layers;
  double bytes = 0;
  for (int i = 0; i < kLayers; ++i) {
    layers.push_back({matrix(qkv_dim, model.dim), matrix(model.dim, q_dim),
                      matrix(2 * model.mlp_dim, model.dim), matrix(model.dim, model.mlp_dim)});
    const Layer& layer = layers.back();
    bytes += static_cast<double>(layer.qkv.size_bytes() + layer.attention_out.size_bytes() +
                                 layer.gate_up.size_bytes() + layer.down.size_bytes());
  }
  const Tensor residual = random_tensor(DType::kF32, {1, model.dim});
  const Tensor weight = random_tensor(DType::kF32, {model.dim});
  const Tensor normed = random_tensor(DType::kBF16, {1, model.dim});
  const Tensor qkv = random_tensor(DType::kBF16, {1, qkv_dim});
  const Tensor q = random_tensor(DType::kBF16, {1, model.num_q_heads, kHeadDim});
  const Tensor k(DType::kBF16, {1, model.num_kv_heads, kPageSize, kHeadDim}, kGpu.device);
  const Tensor v(DType::kBF16, {1, model.num_kv_heads, kPageSize, kHeadDim}, kGpu.device);
  const Tensor gate_up = random_tensor(DType::kBF16, {1, 2 * model.mlp_dim});
  const Tensor activated = random_tensor(DType::kBF16, {1, model.mlp_dim});
  const Tensor page_table(DType::kI32, {1}, kGpu.device), position(DType::kI64, {1}, kGpu.device);
  RopeTable rope_table(kHeadDim, 1e6, {}, kGpu.device);
  rope_table.fill(position.as<int64_t>(), 1, kGpu);
  QkvTask task;
  task.qkv = qkv.view();
  task.table = &rope_table;
  task.q = q.view();
  task.k = k.view();
  task.v = v.view();
  task.page_table = page_table.as<int32_t>();
  task.position = position.as<int64_t>();
  const double us = time_us([&](int) {
    for (const Layer& layer : layers) {
      ops.norm(residual.view(), weight.view(), 1e-6f, 0, normed.view());
      ops.matmul(normed.view(), layer.qkv, qkv.view());
      ops.finish_qkv(task);
      ops.matmul_add(flat(q.view()), layer.attention_out, residual.view());
      ops.norm(residual.view(), weight.view(), 1e-6f, 0, normed.view());
      ops.matmul(normed.view(), layer.gate_up, gate_up.view());
      ops.activate(fovea::GateFunction::kSilu, gate_up.view(), activated.view());
      ops.matmul_add(activated.view(), layer.down, residual.view());
    }
  });
  show_bytes(rates, name, us, bytes);
}

void row_operations(RowOps& ops, const Rates& rates, const Model& model, int64_t rows) {
  const auto show = [&](const char* what, const std::function<void(int)>& run, int64_t bytes) {
    const std::string name = fmt::format("{} {} {} rows", model.name, what, rows);
    if (is_wanted(name)) show_bytes(rates, name, time_us(run), static_cast<double>(bytes));
  };
  const int64_t dim = model.dim, head_dim = 128, page_size = 128;
  const Tensor residual = random_tensor(DType::kF32, {rows, dim});
  const Tensor weight = random_tensor(DType::kF32, {dim});
  const Tensor normed = random_tensor(DType::kBF16, {rows, dim});
  show(
      "norm", [&](int) { ops.norm(residual.view(), weight.view(), 1e-6f, 0, normed.view()); },
      6 * rows * dim);
  show(
      "add_normed",
      [&](int) { ops.add_normed(normed.view(), weight.view(), 1e-6f, residual.view()); },
      10 * rows * dim);

  const Tensor table = random_tensor(DType::kBF16, {151936, dim});
  std::vector<int32_t> token_values(static_cast<size_t>(rows));
  std::mt19937 random(2);
  for (int32_t& token : token_values) token = static_cast<int32_t>(random() % 151936);
  const Tensor tokens(DType::kI32, {rows}, kGpu.device);
  copy_tensor(make_view(token_values.data(), DType::kI32, {rows}), tokens.view(), kGpu);
  show(
      "embed", [&](int) { ops.embed(tokens.as<int32_t>(), table.view(), 1, residual.view()); },
      6 * rows * dim);

  const Tensor gate_up = random_tensor(DType::kBF16, {rows, 2 * model.mlp_dim});
  const Tensor activated = random_tensor(DType::kBF16, {rows, model.mlp_dim});
  show(
      "activate",
      [&](int) { ops.activate(fovea::GateFunction::kSilu, gate_up.view(), activated.view()); },
      6 * rows * model.mlp_dim);

  const int64_t num_heads = model.num_q_heads + 2 * model.num_kv_heads;
  const int64_t num_pages = (rows + page_size - 1) / page_size;
  const Tensor qkv = random_tensor(DType::kBF16, {rows, num_heads * head_dim});
  const Tensor bias = random_tensor(DType::kF32, {num_heads * head_dim});
  const Tensor head_norm = random_tensor(DType::kF32, {head_dim});
  const Tensor q = random_tensor(DType::kBF16, {rows, model.num_q_heads, head_dim});
  const Tensor k =
      random_tensor(DType::kBF16, {num_pages, model.num_kv_heads, page_size, head_dim});
  const Tensor v =
      random_tensor(DType::kBF16, {num_pages, model.num_kv_heads, page_size, head_dim});
  std::vector<int32_t> pages(static_cast<size_t>(num_pages));
  for (size_t i = 0; i < pages.size(); ++i) pages[i] = static_cast<int32_t>(pages.size() - 1 - i);
  const Tensor page_table(DType::kI32, {num_pages}, kGpu.device);
  copy_tensor(make_view(pages.data(), DType::kI32, {num_pages}), page_table.view(), kGpu);
  const Tensor position(DType::kI64, {1}, kGpu.device);
  RopeTable rope_table(head_dim, 1e6, {}, kGpu.device);
  show(
      "rope table", [&](int) { rope_table.fill(position.as<int64_t>(), rows, kGpu); },
      4 * rows * head_dim);
  QkvTask task;
  task.qkv = qkv.view();
  if (model.has_bias) task.bias = bias.view();
  if (model.has_norms) task.q_norm = task.k_norm = head_norm.view();
  task.eps = 1e-6f;
  task.table = &rope_table;
  task.q = q.view();
  task.k = k.view();
  task.v = v.view();
  task.page_table = page_table.as<int32_t>();
  task.position = position.as<int64_t>();
  show(
      "finish_qkv", [&](int) { ops.finish_qkv(task); }, 4 * rows * num_heads * head_dim);
}

void mixture(RowOps& ops, const Rates& rates, const Model& model, bool is_f8,
             const std::vector<int64_t>& row_counts) {
  const int64_t dim = model.dim, width = model.mlp_dim;
  const PackedWeights router(random_tensor(DType::kBF16, {model.num_experts, dim}));
  ExpertWeights gate_up(model.num_experts,
                        random_tensor(DType::kBF16, {model.num_experts * 2 * width, dim}));
  ExpertWeights down(model.num_experts,
                     random_tensor(DType::kBF16, {model.num_experts * dim, width}));
  if (is_f8) {
    gate_up = gate_up.quantized(kGpu);
    down = down.quantized(kGpu);
  }
  for (const int64_t rows : row_counts) {
    const std::string name =
        fmt::format("{} experts {} rows{}", model.name, rows, is_f8 ? " f8" : "");
    if (!is_wanted(name)) continue;
    // Inputs that differ, so that few rows do not find their experts in the L2 cache.
    const int64_t num_inputs = rows <= 16 ? 64 : 1;
    const Tensor normed = random_tensor(DType::kBF16, {num_inputs * rows, dim});
    const Tensor residual = random_tensor(DType::kF32, {rows, dim});
    MoeTask task;
    task.router = &router;
    task.gate_up = &gate_up;
    task.down = &down;
    task.top_k = model.top_k;
    task.normalise = true;
    task.residual = residual.view();
    const double us = time_us([&](int call) {
      task.normed = rows_of(normed.view(), call % num_inputs * rows, rows);
      ops.moe(task);
    });
    const double flops = 6.0 * static_cast<double>(rows * model.top_k * width * dim);
    if (rows <= 16) {
      show_bytes(rates, name, us,
                 static_cast<double>(rows * model.top_k * (is_f8 ? 3 : 6) * width * dim));
    } else {
      fmt::print("{:<44} {:9.1f} us {:6.0f} TFLOP/s {:5.2f} of GEMM\n", name, us, flops / us / 1e6,
                 flops / us / 1e6 / rates.gemm_tflop_s);
    }
  }
}

/// Microseconds of an operation in a recorded step, where launches cost the host nothing.
double recorded_us(const std::function<void(RowOps&)>& run) {
  constexpr int kCalls = 50;
  const auto stream = fovea::make_stream(kGpu.device);
  const fovea::Context context{.device = kGpu.device, .stream = stream.get()};
  const auto cuda_stream = static_cast<cudaStream_t>(stream.get());
  const auto ops = fovea::make_row_ops(DType::kBF16, context);
  run(*ops);
  fovea::synchronize(context);
  cudaGraph_t recorded = nullptr;
  cudaGraphExec_t graph = nullptr;
  check_cuda(cudaStreamBeginCapture(cuda_stream, cudaStreamCaptureModeThreadLocal), "recording");
  for (int i = 0; i < kCalls; ++i) run(*ops);
  check_cuda(cudaStreamEndCapture(cuda_stream, &recorded), "recording");
  check_cuda(cudaGraphInstantiate(&graph, recorded, 0), "recording");
  const double us = time_us([&](int) { check_cuda(cudaGraphLaunch(graph, nullptr), "replaying"); });
  cudaGraphExecDestroy(graph);
  cudaGraphDestroy(recorded);
  return us / kCalls;
}

/// A token from logits as spread as a model's.
void draws() {
  struct Case {
    const char* name;
    fovea::Draw draw;
  };
  const Case cases[] = {
      {"greedy", {}},
      {"temperature", {.random = 0.7, .temperature = 0.8f}},
      {"top_p", {.random = 0.7, .temperature = 0.8f, .top_p = 0.95f}},
      {"top_k", {.random = 0.7, .temperature = 0.8f, .top_k = 40}},
      {"top_k, top_p, min_p",
       {.random = 0.7, .temperature = 0.8f, .top_p = 0.95f, .min_p = 0.05f, .top_k = 40}}};
  const Tensor token(DType::kI32, {1}, kGpu.device);
  for (const int64_t vocab_size : {49152, 152064, 262144}) {
    const Tensor logits = random_tensor(DType::kF32, {1, vocab_size});
    for (const Case& one : cases) {
      const std::string name = fmt::format("draw of {} tokens, {}", vocab_size, one.name);
      if (!is_wanted(name)) continue;
      Tensor draw(DType::kI64, {sizeof(fovea::Draw) / sizeof(int64_t)}, kGpu.device);
      copy_tensor(
          make_view(const_cast<fovea::Draw*>(&one.draw), DType::kI64, {draw.view().num_elements()}),
          draw.view(), kGpu);
      const double us = recorded_us([&](RowOps& ops) {
        ops.draw(logits.view(), draw.as<fovea::Draw>(), token.as<int32_t>());
      });
      fmt::print("{:<44} {:9.1f} us\n", name, us);
    }
  }
}

Rates measure_rates(RowOps& ops) {
  const Tensor from = random_tensor(DType::kBF16, {int64_t{1} << 31});
  const Tensor to(DType::kBF16, {int64_t{1} << 31}, kGpu.device);
  Rates rates{};
  rates.copy_tb_s = 2.0 * static_cast<double>(from.size_bytes()) / 1e6 /
                    time_us([&](int) { copy_tensor(from.view(), to.view(), kGpu); });
  rates.gemm_tflop_s =
      2.0 * 8192 * 8192 * 8192 / 1e6 / product_us(ops, {"", 8192, 8192, false}, 8192, 1);
  fmt::print("copy {:.2f} TB/s read and written, GEMM 8192^3 {:.0f} TFLOP/s\n", rates.copy_tb_s,
             rates.gemm_tflop_s);
  return rates;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    std::vector<int64_t> row_counts;
    int first = 1;
    if (argc > 2 && std::string(argv[1]) == "--only") {
      wanted_text = argv[2];
      first = 3;
    }
    for (int i = first; i < argc; ++i) row_counts.push_back(std::atoll(argv[i]));
    if (row_counts.empty()) row_counts = {4096, 16384};
    const auto ops = fovea::make_row_ops(DType::kBF16, kGpu);
    ops->begin_step(row_counts[0]);
    const Rates rates = measure_rates(*ops);
    draws();
    for (const Model& model : kModels) {
      for (const int64_t rows : row_counts) prefill_products(*ops, rates, model, rows, false);
      for (const int64_t rows : row_counts) prefill_products(*ops, rates, model, rows, true);
      for (const int64_t rows : {1, 4, 8, 16}) decode_products(*ops, rates, model, rows);
      if (model.num_experts == 0) decode_layers(*ops, rates, model);
      if (model.num_experts > 0) {
        std::vector<int64_t> mixture_rows = {1, 8};
        mixture_rows.insert(mixture_rows.end(), row_counts.begin(), row_counts.end());
        mixture(*ops, rates, model, false, mixture_rows);
        mixture(*ops, rates, model, true, mixture_rows);
      }
      for (const int64_t rows : {int64_t{1}, row_counts.back()}) {
        row_operations(*ops, rates, model, rows);
      }
    }
  } catch (const fovea::Error& error) {
    fmt::print(stderr, "cuda_ops: {}\n", error.what());
    return 1;
  }
  return 0;
}
