#include "benchmarks/kernel_bench.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <numeric>
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

Timing to_timing(std::vector<double> times) {
  std::sort(times.begin(), times.end());
  return {times[times.size() / 2], times.front(), times.back(), static_cast<int32_t>(times.size())};
}

// Of one call, over as many as fill `least_ms`.
double mean_ms(const std::function<void()>& body, double least_ms) {
  const double start = now_ms();
  double passed = 0;
  int calls = 0;
  while (passed < least_ms) {
    body();
    ++calls;
    passed = now_ms() - start;
  }
  return passed / calls;
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
  return to_timing(std::move(times));
}

Comparison time_in_turn(const std::function<void()>& work, const std::function<void()>& yardstick,
                        double min_seconds) {
  constexpr double kLeastMs = 20;  // of each in a round
  const double start = now_ms();
  work();
  yardstick();
  std::vector<double> work_ms, yardstick_ms, ratios;
  while (ratios.size() < 3 || now_ms() - start < min_seconds * 1e3) {
    work_ms.push_back(mean_ms(work, kLeastMs));
    yardstick_ms.push_back(mean_ms(yardstick, kLeastMs));
    ratios.push_back(yardstick_ms.back() / work_ms.back());
  }
  std::sort(ratios.begin(), ratios.end());
  Comparison comparison;
  comparison.work = to_timing(std::move(work_ms));
  comparison.yardstick = to_timing(std::move(yardstick_ms));
  comparison.ratio = ratios[ratios.size() / 2];
  comparison.ratio_low = ratios[ratios.size() / 4];
  comparison.ratio_high = ratios[ratios.size() * 3 / 4];
  return comparison;
}

struct GemmWork::Impl {
  using Memory = dnnl::memory;
  dnnl::engine engine{dnnl::engine::kind::cpu, 0};
  mutable dnnl::stream stream{engine};
  int64_t size = 0;
  dnnl::matmul matmul;
  Memory a, b, c;

  // Operands in the layout oneDNN likes best, as its own benchmarks do.
  Impl(DType dtype, int64_t n) : size(n) {
    const auto type = dtype == DType::kBF16 ? Memory::data_type::bf16 : Memory::data_type::f32;
    const Memory::desc any({n, n}, type, Memory::format_tag::any);
    const Memory::desc result({n, n}, Memory::data_type::f32, Memory::format_tag::ab);
    const dnnl::matmul::primitive_desc chosen(dnnl::matmul::desc(any, any, result), engine);
    matmul = dnnl::matmul(chosen);
    a = Memory(chosen.src_desc(), engine);
    b = Memory(chosen.weights_desc(), engine);
    c = Memory(chosen.dst_desc(), engine);
    for (const Memory& operand : {a, b}) {
      std::memset(operand.get_data_handle(), 0x3c, operand.get_desc().get_size());
    }
  }
  void run() {
    matmul.execute(stream, {{DNNL_ARG_SRC, a}, {DNNL_ARG_WEIGHTS, b}, {DNNL_ARG_DST, c}});
    stream.wait();
  }
  double flops() const { return 2 * std::pow(static_cast<double>(size), 3); }
};

GemmWork::GemmWork(DType dtype) {
  double best = 0;
  for (const int64_t size : {1024, 2048, 4096}) {
    auto candidate = std::make_unique<Impl>(dtype, size);
    const double ms = time_repeatedly([&] { candidate->run(); }, 0.3).median_ms;
    if (giga_per_s(candidate->flops(), ms) <= best) continue;
    best = giga_per_s(candidate->flops(), ms);
    impl_ = std::move(candidate);
  }
}
GemmWork::~GemmWork() = default;
void GemmWork::run() const { impl_->run(); }
double GemmWork::flops() const { return impl_->flops(); }

namespace {
constexpr size_t kCopyBytes = size_t{128} << 20;
}

CopyWork::CopyWork(const Context& context)
    : context_(context), from_(new std::byte[kCopyBytes]()), to_(new std::byte[kCopyBytes]()) {}

void CopyWork::run() const {
  constexpr int64_t kPieces = 32;
  parallel_for(context_, kPieces, [&](int64_t i, int32_t) {
    constexpr size_t kSize = kCopyBytes / kPieces;
    std::memcpy(to_.get() + static_cast<size_t>(i) * kSize,
                from_.get() + static_cast<size_t>(i) * kSize, kSize);
  });
}

double CopyWork::bytes() const { return 2.0 * kCopyBytes; }

struct AttentionWork::Impl {
  KernelShape shape;
  Context context;
  Tensor q, out, k, v, k_mean, v_mean;
  std::vector<int32_t> page_table;
  int64_t q_offsets[2];
  BlockSelection selection;
  BlockSelectionView selection_view;
  AttentionParams params;

  Impl(const KernelShape& wanted, const Context& where) : shape(wanted), context(where) {
    const int64_t num_pages = ceil_div(shape.kv_len, kBlockSize);
    for (Tensor* rows : {&q, &out}) {
      *rows = Tensor(shape.dtype, {shape.q_len, shape.num_q_heads, shape.head_dim});
    }
    for (Tensor* pages : {&k, &v}) {
      *pages = Tensor(shape.dtype, {num_pages, shape.num_kv_heads, kBlockSize, shape.head_dim});
    }
    for (Tensor* means : {&k_mean, &v_mean}) {
      *means = Tensor(shape.dtype, {num_pages, shape.num_kv_heads, shape.head_dim});
    }
    uint64_t seed = 1;
    for (const Tensor* tensor : {&q, &k, &v, &k_mean, &v_mean}) fill(*tensor, seed++);
    page_table.resize(static_cast<size_t>(num_pages));
    std::iota(page_table.begin(), page_table.end(), 0);
    q_offsets[0] = 0;
    q_offsets[1] = shape.q_len;
    params.q = q.view();
    params.kv = {k.view(), v.view(), nullptr, page_table.data(), num_pages, kBlockSize};
    params.batch = {1, q_offsets, &shape.kv_len};
    params.out = out.view();
    if (shape.density >= 1) return;
    selection = random_lists(shape);
    selection_view = selection.view();
    params.selection = &selection_view;
    if (shape.has_periphery) params.periphery = {k_mean.view(), v_mean.view(), nullptr};
  }
};

AttentionWork::AttentionWork(const KernelShape& shape, const Context& context)
    : impl_(std::make_unique<Impl>(shape, context)) {}
AttentionWork::~AttentionWork() = default;
void AttentionWork::run() const { attend(impl_->params, impl_->context); }

std::string_view AttentionWork::backend() const {
  return choose_attention_backend(impl_->params, impl_->context).name();
}

double AttentionWork::density() const {
  return impl_->shape.density < 1 ? impl_->selection.density() : 1;
}

double AttentionWork::flops() const {
  const KernelShape& shape = impl_->shape;
  const auto q_len = static_cast<double>(shape.q_len);
  const auto past = static_cast<double>(shape.kv_len - shape.q_len);
  const double pairs = q_len * past + q_len * (q_len + 1) / 2;
  return 4 * pairs * static_cast<double>(shape.head_dim * shape.num_q_heads) * density();
}

double AttentionWork::kv_bytes() const {
  const KernelShape& shape = impl_->shape;
  return 2 * static_cast<double>(shape.kv_len * shape.num_kv_heads * shape.head_dim *
                                 dtype_bytes(shape.dtype));
}

}  // namespace fovea
