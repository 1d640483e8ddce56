#include "benchmarks/kernel_bench.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <oneapi/dnnl/dnnl.hpp>
#include <random>
#include <vector>

#include "fovea/base/parallel.h"
#include "fovea/tensor/bfloat16.h"

namespace fovea {
namespace {

constexpr int64_t kBlockSize = 128;

double now_ms() {
  using std::chrono::duration;
  return duration<double, std::milli>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Random data in [-1.7, 1.7], variance 1.
void fill(const Tensor& tensor, uint64_t seed) {
  std::minstd_rand random(static_cast<uint32_t>(seed));
  const int64_t num = tensor.view().num_elements();
  for (int64_t i = 0; i < num; ++i) {
    const float value = (static_cast<float>(random()) / 2147483647.0f - 0.5f) * 3.46f;
    if (tensor.view().dtype == DType::kF32) {
      tensor.as<float>()[i] = value;
    } else {
      tensor.as<BFloat16>()[i] = to_bfloat16(value);
    }
  }
}

BlockSelection random_lists(const KernelShape& shape) {
  std::mt19937 random(7);
  BlockSelection selection;
  selection.block_size = kBlockSize;
  selection.num_q_heads = shape.num_q_heads;
  const int64_t first = first_q_block(shape.q_len, shape.kv_len, kBlockSize);
  const int64_t end = end_q_block(shape.kv_len, kBlockSize);
  selection.num_q_blocks = end - first;
  selection.q_block_offsets = {0, end - first};
  for (int64_t h = 0; h < shape.num_q_heads; ++h) {
    for (int64_t i = first; i < end; ++i) {
      std::vector<int32_t> past(static_cast<size_t>(i));
      for (int64_t b = 0; b < i; ++b) past[static_cast<size_t>(b)] = static_cast<int32_t>(b);
      std::shuffle(past.begin(), past.end(), random);
      const auto wanted =
          static_cast<int64_t>(shape.density * static_cast<double>(i + 1) + 0.5) - 1;
      past.resize(static_cast<size_t>(std::clamp<int64_t>(wanted, 0, i)));
      std::sort(past.begin(), past.end());
      past.push_back(static_cast<int32_t>(i));
      selection.begin.push_back(static_cast<int64_t>(selection.blocks.size()));
      selection.len.push_back(static_cast<int32_t>(past.size()));
      selection.blocks.insert(selection.blocks.end(), past.begin(), past.end());
      selection.causal_pairs += i + 1;
      selection.kept_pairs += static_cast<int64_t>(past.size());
    }
  }
  return selection;
}

}  // namespace

Timing time_repeatedly(const std::function<void()>& body, double min_seconds) {
  body();
  std::vector<double> times;
  double total = 0;
  while (times.size() < 3 || (total < min_seconds * 1e3 && times.size() < 200)) {
    const double start = now_ms();
    body();
    times.push_back(now_ms() - start);
    total += times.back();
  }
  std::sort(times.begin(), times.end());
  return {times[times.size() / 2], times.front(), times.back(), static_cast<int32_t>(times.size())};
}

double measure_gemm_gflops(DType dtype, const Context& context) {
  (void)context;  // oneDNN uses OpenMP's threads, as many as the process has
  using dnnl::memory;
  const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  dnnl::stream stream(engine);
  const auto type = dtype == DType::kBF16 ? memory::data_type::bf16 : memory::data_type::f32;
  double best = 0;
  for (const int64_t n : {1024, 2048, 4096}) {
    // Operands in the layout oneDNN likes best, as its own benchmarks do.
    const memory::desc any({n, n}, type, memory::format_tag::any);
    const memory::desc result({n, n}, memory::data_type::f32, memory::format_tag::ab);
    const dnnl::matmul::primitive_desc matmul_desc(dnnl::matmul::desc(any, any, result), engine);
    const dnnl::matmul matmul(matmul_desc);
    memory a(matmul_desc.src_desc(), engine), b(matmul_desc.weights_desc(), engine),
        c(matmul_desc.dst_desc(), engine);
    for (const memory& operand : {a, b}) {
      std::memset(operand.get_data_handle(), 0x3c, operand.get_desc().get_size());
    }
    const Timing timing = time_repeatedly(
        [&] {
          matmul.execute(stream, {{DNNL_ARG_SRC, a}, {DNNL_ARG_WEIGHTS, b}, {DNNL_ARG_DST, c}});
          stream.wait();
        },
        0.5);
    const auto size = static_cast<double>(n);
    best = std::max(best, 2 * size * size * size / timing.median_ms / 1e6);
  }
  return best;
}

double measure_copy_gb_per_s(const Context& context) {
  constexpr int64_t kBytes = int64_t{128} << 20, kPieces = 32;
  std::vector<std::byte> from(kBytes, std::byte{1}), to(kBytes);
  const Timing timing = time_repeatedly(
      [&] {
        parallel_for(context, kPieces, [&](int64_t i, int32_t) {
          const auto size = static_cast<size_t>(kBytes / kPieces);
          std::memcpy(to.data() + static_cast<size_t>(i) * size,
                      from.data() + static_cast<size_t>(i) * size, size);
        });
      },
      0.5);
  return 2 * static_cast<double>(kBytes) / timing.median_ms / 1e6;
}

KernelMeasurement measure_attention(const KernelShape& shape, const Context& context,
                                    double min_seconds) {
  const int64_t num_pages = ceil_div(shape.kv_len, kBlockSize);
  Tensor q(shape.dtype, {shape.q_len, shape.num_q_heads, shape.head_dim});
  Tensor out(shape.dtype, {shape.q_len, shape.num_q_heads, shape.head_dim});
  Tensor k(shape.dtype, {num_pages, shape.num_kv_heads, kBlockSize, shape.head_dim});
  Tensor v(shape.dtype, {num_pages, shape.num_kv_heads, kBlockSize, shape.head_dim});
  Tensor k_mean(shape.dtype, {num_pages, shape.num_kv_heads, shape.head_dim});
  Tensor v_mean(shape.dtype, {num_pages, shape.num_kv_heads, shape.head_dim});
  uint64_t seed = 1;
  for (const Tensor* tensor : {&q, &k, &v, &k_mean, &v_mean}) fill(*tensor, seed++);
  std::vector<int32_t> page_table(static_cast<size_t>(num_pages));
  for (size_t i = 0; i < page_table.size(); ++i) page_table[i] = static_cast<int32_t>(i);
  const int64_t q_offsets[] = {0, shape.q_len};
  AttentionParams params;
  params.q = q.view();
  params.kv = {k.view(), v.view(), nullptr, page_table.data(), num_pages, kBlockSize};
  params.batch = {1, q_offsets, &shape.kv_len};
  params.out = out.view();
  KernelMeasurement measurement;
  BlockSelection selection;
  BlockSelectionView selection_view;
  if (shape.density < 1) {
    selection = random_lists(shape);
    selection_view = selection.view();
    params.selection = &selection_view;
    measurement.density = selection.density();
    if (shape.has_periphery) params.periphery = {k_mean.view(), v_mean.view(), nullptr};
  }
  measurement.backend = choose_attention_backend(params, context).name();
  measurement.timing = time_repeatedly([&] { attend(params, context); }, min_seconds);
  const auto q_len = static_cast<double>(shape.q_len);
  const auto past = static_cast<double>(shape.kv_len - shape.q_len);
  const double pairs = q_len * past + q_len * (q_len + 1) / 2;
  measurement.useful_flops =
      4 * pairs * static_cast<double>(shape.head_dim * shape.num_q_heads) * measurement.density;
  measurement.kv_bytes = 2 * static_cast<double>(shape.kv_len * shape.num_kv_heads *
                                                 shape.head_dim * dtype_bytes(shape.dtype));
  return measurement;
}

}  // namespace fovea
